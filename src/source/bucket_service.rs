//! The object storage services: their URLs, and the URLs of their buckets.

use url::{Host, Url};

use super::access::Access;
use super::access_point::AccessPoint;
use super::endpoint::endpoint;
use super::uri::Uri;
use crate::error::{Error, Kind, Result};

/// The error for a source that is in no bucket.
pub(crate) fn not_object_storage(uri: &Uri) -> Error {
    Error::new(Kind::Unsupported, format!("scheme {}:// is not object storage", uri.scheme()))
}

/// The service that a source's bucket is in.
#[derive(Debug)]
pub(crate) struct BucketService {
    /// The URL, without a slash at its end.
    pub endpoint: String,
    /// The region that requests are signed for; empty for a service that doesn't speak S3.
    pub region: String,
    /// Whether a bucket has a host of its own.
    virtual_host: bool,
}

impl BucketService {
    /// The service of `uri`, with the endpoint and region of `access` where it names them.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a wrong endpoint or region, [`Kind::Unsupported`] for a source that is not in a bucket.
    pub(crate) fn of(uri: &Uri, access: &Access) -> Result<Self> {
        let given = access.s3(uri).and_then(|s3| s3.region.as_deref());
        let point = match uri {
            Uri::S3 { bucket, .. } => AccessPoint::of(bucket),
            _ => None,
        };
        let (region, own, virtual_host) = match uri {
            Uri::S3 { .. } => {
                let region = point.as_ref().map(|point| point.region).or(given).unwrap_or("us-east-1");
                let china = if region.starts_with("cn-") { ".cn" } else { "" };
                let service = if point.is_some() { "s3-accesspoint" } else { "s3" };
                (region, format!("https://{service}.{region}.amazonaws.com{china}"), false)
            }
            // https://developers.cloudflare.com/r2/api/s3/api/
            Uri::R2 { account, .. } => {
                (given.unwrap_or("auto"), format!("https://{account}.r2.cloudflarestorage.com"), false)
            }
            // https://docs.coreweave.com/docs/products/storage/object-storage: buckets have hosts of their own.
            Uri::Cw { .. } => (given.unwrap_or("US-EAST-04A"), "https://cwobject.com".into(), true),
            Uri::Gs { .. } => ("", "https://storage.googleapis.com".into(), false),
            Uri::Azure { account, .. } => ("", format!("https://{account}.blob.core.windows.net"), false),
            _ => return Err(not_object_storage(uri)),
        };
        let named = !region.is_empty() || given.is_none();
        if !named || !region.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Error::new(Kind::Invalid, format!("{region:?} is not the name of a region")));
        }
        let endpoint = access.endpoint(uri).map_or(Ok(own), |text| endpoint(text, access.allow_http))?;
        // Access points have no URLs but those.
        let virtual_host = point.is_some() || access.virtual_host.unwrap_or(virtual_host);
        Ok(Self { endpoint, region: region.into(), virtual_host })
    }

    /// The URL of a bucket at a service that speaks S3.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where a bucket is to have a host of its own, and the service is an IP address.
    pub(crate) fn bucket(&self, name: &str) -> Result<String> {
        let endpoint = &self.endpoint;
        let name = AccessPoint::of(name).map_or_else(|| name.to_owned(), |point| point.host_label());
        if !self.virtual_host {
            return Ok(format!("{endpoint}/{name}"));
        }
        let host = Url::parse(endpoint).ok().filter(|url| matches!(url.host(), Some(Host::Domain(_))));
        match (host, endpoint.split_once("://")) {
            (Some(_), Some((scheme, host))) => Ok(format!("{scheme}://{name}.{host}")),
            _ => Err(Error::new(
                Kind::Invalid,
                format!(
                    "buckets cannot have hosts of their own at {endpoint}, which is not a host name; use path-style URLs (--bucket-style path)"
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::S3Access;

    #[test]
    fn bucket_url_of_each_service_is_its_own() {
        let at = |text: &str, access: &Access| {
            let service = BucketService::of(&text.parse().expect(text), access).expect(text);
            (service.bucket("b").expect(text), service.region)
        };
        for (uri, bucket, region) in [
            ("s3://b", "https://s3.us-east-1.amazonaws.com/b", "us-east-1"),
            ("r2://acct.b", "https://acct.r2.cloudflarestorage.com/b", "auto"),
            ("cw://b", "https://b.cwobject.com", "US-EAST-04A"),
            ("gs://b", "https://storage.googleapis.com/b", ""),
            ("azure://acct/b", "https://acct.blob.core.windows.net/b", ""),
        ] {
            assert_eq!(at(uri, &Access::default()), (bucket.into(), region.into()));
        }
        let china = S3Access { region: Some("cn-north-1".into()), ..S3Access::default() };
        let access = Access { s3: Some(china.clone()), virtual_host: Some(true), ..Access::default() };
        assert_eq!(at("s3://b", &access).0, "https://b.s3.cn-north-1.amazonaws.com.cn");
        for region in ["", "eu west"] {
            let s3 = Some(S3Access { region: Some(region.into()), ..S3Access::default() });
            let error =
                BucketService::of(&"s3://b".parse().expect("URI"), &Access { s3, ..Access::default() });
            assert_eq!(
                error.expect_err("no region").to_string(),
                format!("{region:?} is not the name of a region")
            );
        }
        BucketService::of(&"file:///x".parse().expect("URI"), &Access::default()).expect_err("no service");
    }
}
