//! `bdnfs cluster issue`.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::peer::identity;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};

use super::authority;

/// For whom, and by whom.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's name: lower-case letters, digits, - and dots, as in a host's name
    id: String,
    /// Directory of the authority
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// A tenant that the node may host; repeatable
    #[arg(long = "tenant", value_name = "NAME", required = true)]
    tenants: Vec<String>,
    /// For how many days the certificate is valid
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Directory for ID.pem and ID.key; what is there is replaced, and a node that runs takes it up
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Makes the certificate.
pub fn run(args: &Args) -> Result<()> {
    let Args { id, out, .. } = args;
    if !identity::is_id(id) {
        bail!("{id:?} can't be a node's name: expected lower-case letters, digits, '-' and dots");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if let Some(strange) = args.tenants.iter().find(|t| t.is_empty() || !t.chars().all(plain)) {
        bail!("{strange:?} can't be a tenant: expected letters, digits, '-' and '_'");
    }
    let authority = authority::open(&args.ca)?;
    let pair = KeyPair::generate().context("cannot make a key")?;
    let made = params(args)?.signed_by(&pair, &authority).context("cannot make a certificate")?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(out)
        .with_context(|| authority::cannot_use(out))?;
    let (certificate, key) = (out.join(format!("{id}.pem")), out.join(format!("{id}.key")));
    // A node that reads both in between finds that they don't fit, and keeps what it has.
    authority::write(&key, &pair.serialize_pem(), true)?;
    authority::write(&certificate, &made.pem(), false)?;
    println!("{} and {} are for the node {id}, for {} days", certificate.display(), key.display(), args.days);
    Ok(())
}

fn params(args: &Args) -> Result<CertificateParams> {
    let mut params = CertificateParams::new([]).context("cannot make a certificate")?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, args.id.as_str());
    let dns = [identity::host(&args.id), format!("*.{}", identity::ANYBODY)];
    let uris = [format!("{}{}", identity::NODE, args.id)].into_iter();
    let uris = uris.chain(args.tenants.iter().map(|tenant| format!("{}{tenant}", identity::TENANT)));
    for name in dns {
        params.subject_alt_names.push(SanType::DnsName(name.try_into().context("no host's name")?));
    }
    for uri in uris {
        params.subject_alt_names.push(SanType::URI(uri.try_into().context("no URI")?));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    authority::valid(&mut params, Duration::from_secs(u64::from(args.days) * authority::DAY));
    Ok(params)
}
