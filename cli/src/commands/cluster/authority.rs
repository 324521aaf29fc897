//! The authority of a cluster: one key that signs the certificates of its nodes.

use std::fs::{DirBuilder, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// How long an authority lasts: ten years. It is replaced by one that is trusted beside it, long before.
const LASTS: Duration = Duration::from_secs(3650 * DAY);
/// Clocks differ: what is made now was valid an hour ago.
const LEEWAY: Duration = Duration::from_secs(3600);
pub const DAY: u64 = 86_400;

/// Where it is to be.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory for the authority's certificate, ca.pem, and its key, ca.key, which stays secret
    directory: PathBuf,
}

/// `bdnfs cluster init-ca`.
pub fn run(args: &Args) -> Result<()> {
    let directory = &args.directory;
    DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(|| cannot_use(directory))?;
    let (certificate, key) = (directory.join("ca.pem"), directory.join("ca.key"));
    if certificate.exists() {
        bail!("{} is an authority already; its certificates would be worth nothing", directory.display());
    }
    let pair = KeyPair::generate().context("cannot make a key")?;
    let made = params(LASTS)?.self_signed(&pair).context("cannot make a certificate")?;
    // The key first: whoever finds the certificate finds both.
    write(&key, &pair.serialize_pem(), true)?;
    write(&certificate, &made.pem(), false)?;
    println!(
        "{} is what every node trusts; keep {} where no node can read it",
        certificate.display(),
        key.display()
    );
    Ok(())
}

/// What signs for the authority in `directory`.
pub fn open(directory: &Path) -> Result<Issuer<'static, KeyPair>> {
    let path = directory.join("ca.key");
    let text = std::fs::read_to_string(&path).with_context(|| {
        format!("{} holds no authority; `bdnfs cluster init-ca` makes one", directory.display())
    })?;
    let key = KeyPair::from_pem(&text).with_context(|| format!("{} is no key", path.display()))?;
    Ok(Issuer::new(params(LASTS)?, key))
}

/// What the authority's certificate says. The name is the same for all: what tells them apart is the key.
fn params(lasts: Duration) -> Result<CertificateParams> {
    let mut params = CertificateParams::new([]).context("cannot make a certificate")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "bdnfs cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    valid(&mut params, lasts);
    Ok(params)
}

/// Has a certificate be valid from now on, for as long as it `lasts`.
pub fn valid(params: &mut CertificateParams, lasts: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - LEEWAY).into();
    params.not_after = (now + lasts).into();
}

/// Writes a file that must not be there; `secret`: for nobody else to read. It is there whole or not at all.
pub fn write(path: &Path, text: &str, secret: bool) -> Result<()> {
    let mode = if secret { 0o600 } else { 0o644 };
    let draft = path.with_extension("new");
    let made = File::options().write(true).create(true).truncate(true).mode(mode).open(&draft);
    made.and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    })
    .and_then(|()| std::fs::rename(&draft, path))
    .with_context(|| format!("cannot write {}", path.display()))
}

pub fn cannot_use(directory: &Path) -> String {
    format!("cannot use the directory {}", directory.display())
}
