//! `bdnfs cluster issue`: issues the certificate of a node.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::peer::identity;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType,
};

use super::authority;
use crate::output;

/// The arguments of `bdnfs cluster issue`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: bdnfs cluster issue gpu-17 --ca /etc/bdnfs/ca --tenant research --out /etc/bdnfs/nodes"
)]
pub struct IssueArgs {
    /// Node id: lower-case letters, digits, - and dots, as in a host name
    id: String,
    /// Directory of the CA
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Tenant whose data the node may serve; repeatable
    #[arg(long = "tenant", value_name = "NAME", required = true)]
    tenants: Vec<String>,
    /// Validity of the certificate, in days
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Directory for ID.pem and ID.key. Existing files are replaced, and a running node reloads them
    #[arg(long, value_name = "DIR", default_value = ".")]
    out: PathBuf,
}

/// Issues the certificate.
pub fn run(args: &IssueArgs) -> Result<()> {
    let IssueArgs { id, out, .. } = args;
    if !identity::is_id(id) {
        bail!("invalid node id {id:?}: expected lower-case letters, digits, '-' and dots");
    }
    let is_valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if let Some(tenant) = args.tenants.iter().find(|t| t.is_empty() || !t.chars().all(is_valid)) {
        bail!("invalid tenant {tenant:?}: expected letters, digits, '-' and '_'");
    }
    let authority = authority::open(&args.ca)?;
    let pair = KeyPair::generate().context("cannot generate a key")?;
    let certified = params(args)?.signed_by(&pair, &authority).context("cannot create a certificate")?;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(out)
        .with_context(|| authority::cannot_create(out))?;
    let (certificate, key) = (out.join(format!("{id}.pem")), out.join(format!("{id}.key")));
    // A node that reads between the two finds that they do not match, and keeps its own.
    authority::write(&key, &pair.serialize_pem(), true)?;
    authority::write(&certificate, &certified.pem(), false)?;
    output::print_line(&format!(
        "issued {} and {} for node {id}, valid for {} days",
        certificate.display(),
        key.display(),
        args.days
    ))
}

fn params(args: &IssueArgs) -> Result<CertificateParams> {
    let mut params = CertificateParams::new([]).context("cannot create a certificate")?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, args.id.as_str());
    let dns = [identity::host(&args.id), format!("*.{}", identity::MEMBER_DNS_SUFFIX)];
    let uris = [format!("{}{}", identity::NODE_URI_PREFIX, args.id)].into_iter();
    let uris =
        uris.chain(args.tenants.iter().map(|tenant| format!("{}{tenant}", identity::TENANT_URI_PREFIX)));
    for name in dns {
        params.subject_alt_names.push(SanType::DnsName(name.try_into().context("invalid host name")?));
    }
    for uri in uris {
        params.subject_alt_names.push(SanType::URI(uri.try_into().context("invalid URI")?));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    authority::set_validity(&mut params, Duration::from_secs(u64::from(args.days) * authority::DAY));
    Ok(params)
}
