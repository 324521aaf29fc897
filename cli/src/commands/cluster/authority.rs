//! `bdnfs cluster init-ca`: the certificate authority (CA) of a cluster, which signs the certificates of its nodes.

use std::fs::{DirBuilder, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::output;

/// The validity of a CA: ten years. Long before, nodes trust a second one beside it.
const CA_VALIDITY: Duration = Duration::from_secs(3650 * DAY);
/// Tolerated difference of clocks: certificates are valid from an hour before.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);
/// A day, in seconds.
pub const DAY: u64 = 86_400;

/// The arguments of `bdnfs cluster init-ca`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs cluster init-ca /etc/bdnfs/ca")]
pub struct InitCaArgs {
    /// Directory for the certificate ca.pem and the secret key ca.key
    directory: PathBuf,
}

/// Creates a CA.
pub fn run(args: &InitCaArgs) -> Result<()> {
    let directory = &args.directory;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| cannot_create(directory))?;
    let (certificate, key) = (directory.join("ca.pem"), directory.join("ca.key"));
    if certificate.exists() {
        bail!("{} already exists; a new CA would invalidate its certificates", certificate.display());
    }
    let pair = KeyPair::generate().context("cannot generate a key")?;
    let certified = params(CA_VALIDITY)?.self_signed(&pair).context("cannot create a certificate")?;
    // The key first: where the certificate is, both are.
    write(&key, &pair.serialize_pem(), true)?;
    write(&certificate, &certified.pem(), false)?;
    output::print_line(&format!(
        "created {} for all nodes, and {}, which no node may read",
        certificate.display(),
        key.display()
    ))
}

/// Opens the CA in `directory`, to sign certificates.
pub fn open(directory: &Path) -> Result<Issuer<'static, KeyPair>> {
    let path = directory.join("ca.key");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("no CA in {}; `bdnfs cluster init-ca` creates one", directory.display()))?;
    let key = KeyPair::from_pem(&text).with_context(|| format!("{}: invalid key", path.display()))?;
    Ok(Issuer::new(params(CA_VALIDITY)?, key))
}

/// The parameters of a CA certificate. All CAs have one name and differ in their keys.
fn params(validity: Duration) -> Result<CertificateParams> {
    let mut params = CertificateParams::new([]).context("cannot create a certificate")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "bdnfs cluster authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    set_validity(&mut params, validity);
    Ok(params)
}

/// Makes a certificate valid from now on, for `validity`.
pub fn set_validity(params: &mut CertificateParams, validity: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + validity).into();
}

/// Writes a file atomically, with mode 0600 if `secret`.
pub fn write(path: &Path, text: &str, secret: bool) -> Result<()> {
    let mode = if secret { 0o600 } else { 0o644 };
    let draft = path.with_extension("new");
    let created = File::options().write(true).create(true).truncate(true).mode(mode).open(&draft);
    created
        .and_then(|mut file| {
            file.set_permissions(Permissions::from_mode(mode))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&draft, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The message that a directory cannot be created.
pub fn cannot_create(directory: &Path) -> String {
    format!("cannot create directory {}", directory.display())
}
