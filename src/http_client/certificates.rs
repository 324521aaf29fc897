//! Trust in servers' certificates: signed by an authority of this machine, or by one that a user names.

use std::sync::Arc;

use reqwest::ClientBuilder;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_platform_verifier::Verifier;

use crate::error::{Error, Kind, Result};

/// Makes `client` trust the certificates in `pem` beside this machine's: as authorities, and as servers' certificates.
///
/// # Errors
/// [`Kind::Invalid`] where `pem` holds no certificate.
pub(super) fn trust(client: ClientBuilder, pem: &str) -> Result<ClientBuilder> {
    let named: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<std::result::Result<_, _>>()
        .unwrap_or_default();
    if named.is_empty() {
        let text =
            "the file of trusted authorities holds no certificate (expected -----BEGIN CERTIFICATE-----)";
        return Err(Error::new(Kind::Invalid, text));
    }
    let invalid = |e| Error::with(Kind::Invalid, "the file of trusted authorities is not valid", e);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let authorities = Verifier::new_with_extra_roots(named.clone(), provider.clone()).map_err(invalid)?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(invalid)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NamedCertificates { authorities, named }))
        .with_no_client_auth();
    Ok(client.tls_backend_preconfigured(config))
}

/// Verifies as this machine does, and accepts a server's certificate that is itself one of those named. `openssl req -x509` marks
/// what it makes as an authority's (CA:TRUE), and no such certificate may be a server's by the rules of the web (RFC 5280,
/// section 4.2.1.9); curl and requests take it all the same.
#[derive(Debug)]
struct NamedCertificates {
    authorities: Verifier,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for NamedCertificates {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self.authorities.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // A certificate is refused for that only after its dates were valid.
            Err(error) if is_authority(&error) && self.named.contains(certificate) => {
                let certificate = rustls::server::ParsedCertificate::try_from(certificate)?;
                rustls::client::verify_server_name(&certificate, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.authorities.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Whether a server's certificate was refused for nothing but being an authority's.
fn is_authority(error: &rustls::Error) -> bool {
    let rustls::Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    other.0.downcast_ref() == Some(&webpki::Error::CaUsedAsEndEntity)
}

#[cfg(test)]
mod tests {
    use reqwest::redirect::Policy;
    use reqwest::{Method, Request};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::HttpClient;
    use super::*;

    /// A certificate like that of `openssl req -x509` for `name`, and its key.
    fn self_signed(name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
        let signing_key = rcgen::KeyPair::generate().expect("a key");
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let cert = params.self_signed(&signing_key).expect("a certificate");
        rcgen::CertifiedKey { cert, signing_key }
    }

    /// A server with this certificate, or without TLS, which answers every request with 204; its port.
    async fn server(pair: Option<&rcgen::CertifiedKey<rcgen::KeyPair>>) -> u16 {
        let acceptor = pair.map(|pair| {
            let key = pair.signing_key.serialize_der().try_into().expect("a key");
            let config = rustls::ServerConfig::builder_with_provider(Arc::new(
                rustls::crypto::aws_lc_rs::default_provider(),
            ));
            let config =
                config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
            let config = config.with_single_cert(vec![pair.cert.der().clone()], key).expect("a pair");
            tokio_rustls::TlsAcceptor::from(Arc::new(config))
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                match &acceptor {
                    Some(acceptor) => {
                        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                        stream.read_u8().await.ok();
                        stream.write_all(answer).await.ok();
                        stream.shutdown().await.ok();
                    }
                    None => {
                        stream.read_u8().await.ok();
                        stream.write_all(answer).await.ok();
                    }
                }
            }
        });
        port
    }

    async fn get(port: u16, trusted: &str) -> Result<reqwest::Response> {
        let client = HttpClient::new(Policy::none(), Some(trusted))?;
        let url = format!("https://localhost:{port}/").parse().expect("a URL");
        client.send(Request::new(Method::GET, url)).await
    }

    #[tokio::test]
    async fn self_signed_certificate_that_is_named_is_trusted_for_its_host() {
        let (ours, same_name, other) =
            (self_signed("localhost"), self_signed("localhost"), self_signed("h.example"));
        let port = server(Some(&ours)).await;
        get(port, &format!("{}{}", other.cert.pem(), ours.cert.pem())).await.expect("trusted");
        let error = get(port, &same_name.cert.pem()).await.expect_err("another certificate");
        assert!(error.to_string().contains("nor by one of those named"), "{error}");
        let error = get(server(Some(&other)).await, &other.cert.pem()).await.expect_err("another name");
        assert!(error.to_string().contains("not valid for name \"localhost\""), "{error}");
        let error = get(port, "hush").await.expect_err("no certificate");
        assert_eq!(error.kind(), Kind::Invalid);
    }

    #[tokio::test]
    async fn https_to_a_plain_http_port_is_reported() {
        let error = get(server(None).await, &self_signed("localhost").cert.pem()).await.expect_err("no TLS");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("the server does not speak TLS there"), "{error}");
    }
}
