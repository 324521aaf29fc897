//! Access points of S3: names of a bucket with a policy of their own, given as an ARN in place of the bucket.

use super::uri_format::wrong;
use crate::error::Result;

/// An access point, by the parts of `arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AccessPoint<'a> {
    pub(super) region: &'a str,
    account: &'a str,
    name: &'a str,
}

impl<'a> AccessPoint<'a> {
    /// The access point that `bucket`, the name of a bucket, is the ARN of.
    pub(super) fn of(bucket: &'a str) -> Option<Self> {
        let (arn, name) = bucket.strip_prefix("arn:aws")?.rsplit_once("accesspoint/")?;
        let mut parts = arn.split(':');
        // Other partitions are aws-cn and aws-us-gov.
        let (_, "s3", region, account, "", None) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next())
        else {
            return None;
        };
        let label = |text: &str| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !text.is_empty() && text.chars().all(fits)
        };
        let is_account = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
        (is_account && label(region) && label(name)).then_some(Self { region, account, name })
    }

    /// The label of its host.
    pub(super) fn host_label(&self) -> String {
        format!("{}-{}", self.name, self.account)
    }
}

/// Splits what comes after `s3://` and begins with an ARN into that, as it is written with a slash, and the path.
pub(super) fn split(rest: &str) -> Result<(String, &str)> {
    let mark = "accesspoint";
    let split = rest.split_once(mark).and_then(|(begin, rest)| {
        let (name, path) = rest.strip_prefix(['/', ':'])?.split_once('/').unwrap_or((&rest[1..], ""));
        Some((format!("{begin}{mark}/{name}"), path))
    });
    split.filter(|(arn, _)| AccessPoint::of(arn).is_some()).ok_or_else(|| {
        let text = "unsupported ARN: only arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME can be read; a bucket is \
                    written by its name";
        wrong("s3", text)
    })
}

#[cfg(test)]
mod tests {
    use crate::source::{Access, BucketService, S3Access, Uri};

    #[test]
    fn access_point_has_the_host_and_region_of_its_arn() {
        let arn = "arn:aws:s3:eu-west-1:123456789012:accesspoint";
        let s3 = S3Access { region: Some("us-east-2".into()), ..S3Access::default() };
        let access = Access { s3: Some(s3), ..Access::default() };
        for (text, canonical) in [
            (format!("s3://{arn}/my-point/a/b/"), format!("s3://{arn}/my-point/a/b")),
            (format!("s3://{arn}:my-point/a"), format!("s3://{arn}/my-point/a")),
            (format!("s3://{arn}/my-point"), format!("s3://{arn}/my-point")),
        ] {
            let uri: Uri = text.parse().expect("a URI");
            assert_eq!(uri.to_string(), canonical);
            assert_eq!(canonical.parse::<Uri>().expect("a URI"), uri);
            let Uri::S3 { bucket, .. } = &uri else { panic!("{uri}") };
            let service = BucketService::of(&uri, &access).expect("AWS");
            let url = service.bucket(bucket).expect("a URL");
            assert_eq!(url, "https://my-point-123456789012.s3-accesspoint.eu-west-1.amazonaws.com");
            assert_eq!(service.region, "eu-west-1");
        }
        let china = "s3://arn:aws-cn:s3:cn-north-1:123456789012:accesspoint/p".parse().expect("a URI");
        let service = BucketService::of(&china, &Access::default()).expect("AWS");
        assert_eq!(service.endpoint, "https://s3-accesspoint.cn-north-1.amazonaws.com.cn");
    }

    #[test]
    fn access_point_at_another_endpoint_has_a_host_below_it() {
        let uri: Uri = "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/p/x".parse().expect("a URI");
        let s3 =
            S3Access { endpoint: Some("https://accesspoint.vpce.example".into()), ..S3Access::default() };
        let access = Access { s3: Some(s3), virtual_host: Some(false), ..Access::default() };
        let Uri::S3 { bucket, .. } = &uri else { panic!("{uri}") };
        let service = BucketService::of(&uri, &access).expect("a service");
        let url = service.bucket(bucket).expect("a URL");
        assert_eq!(url, "https://p-123456789012.accesspoint.vpce.example");
    }

    #[test]
    fn access_point_of_another_kind_is_refused() {
        for arn in [
            "arn:aws:s3:::bucket/x",
            "arn:aws:s3::123456789012:accesspoint/x.mrap",
            "arn:aws:s3-object-lambda:eu-west-1:123456789012:accesspoint/x",
            "arn:aws:s3-outposts:eu-west-1:123456789012:outpost/op-1/accesspoint/x",
            "arn:aws:s3:eu-west-1:1234:accesspoint/x",
            "arn:aws:s3:eu/west:123456789012:accesspoint/x",
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/X",
            "arn:aws:s3:eu-west-1:123456789012:accesspoint/",
            "arn:aws:s3:eu-west-1:123456789012:accesspoint",
            "arn:aws:s3:eu-west-1:123456789012:accesspointé/x",
        ] {
            let error = format!("s3://{arn}").parse::<Uri>().expect_err(arn).to_string();
            assert!(error.contains("unsupported ARN: only arn:aws:s3:REGION"), "{error}");
        }
    }
}
