use super::*;

fn parse(scheme: &str, text: &str) -> Result<Credentials> {
    Credentials::parse(scheme, &Secret::new(text))
}

#[test]
fn credentials_of_each_format_are_read() {
    let bearer = |text| Credentials::Bearer(Secret::new(text));
    let basic = |u, p| Credentials::Basic { username: Secret::new(u), password: Secret::new(p) };
    let azure = |azure| Credentials::Azure(azure);
    let principal = azure(AzureCredentials::Principal {
        tenant_id: "t".into(),
        client_id: "c".into(),
        client_secret: Secret::new("s"),
    });
    let google = r#"{"type": "service_account", "client_email": "a@b", "private_key": "-----BEGIN X"}"#;
    for (scheme, text, read) in [
        ("hf", "hf_abc\n", bearer("hf_abc")),
        ("https", "abc.def-_~+/=", bearer("abc.def-_~+/=")),
        ("https", r#"{"token": "abc"}"#, bearer("abc")),
        ("https", "me:a:b c", basic("me", "a:b c")),
        ("https", r#"{"username": "me", "password": "p"}"#, basic("me", "p")),
        ("azure", "a2V5a2V5\n", azure(AzureCredentials::Key(Secret::new("a2V5a2V5")))),
        ("azure", r#"{"account_key": "a2V5a2V5"}"#, azure(AzureCredentials::Key(Secret::new("a2V5a2V5")))),
        ("azure", "?sv=1&sig=x%3D", azure(AzureCredentials::Sas(Secret::new("sv=1&sig=x%3D")))),
        ("azure", r#"{"sas_token": "sv=1&sig=x"}"#, azure(AzureCredentials::Sas(Secret::new("sv=1&sig=x")))),
        ("azure", r#"{"tenant_id": "t", "client_id": "c", "client_secret": "s"}"#, principal.clone()),
        ("azure", r#"{"tenant": "t", "appId": "c", "password": "s", "displayName": "d"}"#, principal),
        ("gs", google, Credentials::Gcp(GoogleCredentials::Key(Secret::new(google)))),
    ] {
        assert_eq!(parse(scheme, text).expect(text), read);
        assert!(!format!("{read:?}").contains("abc"));
    }
    let google = r#"{"type": "external_account", "audience": "a", "subject_token_type": "t", "token_url": "https://sts",
        "credential_source": {"url": "http://h", "headers": {"x": "abc"},
        "format": {"type": "json", "subject_token_field_name": "f"}}}"#;
    let Ok(Credentials::Gcp(GoogleCredentials::External(external))) = parse("gs", google) else {
        panic!("external")
    };
    let headers = vec![("x".to_owned(), Secret::new("abc"))];
    assert_eq!(external.subject, SubjectToken::Url { url: "http://h".into(), headers });
    assert_eq!((external.field.as_deref(), external.impersonation.clone()), (Some("f"), None));
    assert!(!format!("{external:?}").contains("abc"));
    let aws = r#"{"aws_access_key_id": "AK", "aws_secret_access_key": "hush", "aws_region": "eu-west-1",
        "aws_session_token": "quiet", "aws_endpoint": "http://127.0.0.1:9000", "aws_expiration": "2026-01-02T03:04:05Z",
        "more": 1}"#;
    let Ok(Credentials::Aws(key)) = parse("s3", aws) else { panic!("{aws}") };
    assert_eq!(key.secret_access_key.as_ref().map(Secret::expose), Some("hush"));
    assert_eq!(key.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
    assert_eq!(key.expires.map(|end| end.timestamp()), Some(1_767_323_045));
    assert!(!format!("{key:?}").contains("hush") && !format!("{key:?}").contains("quiet"), "{key:?}");
    for text in [
        r#"{"aws_access_key_id": "id", "aws_secret_access_key": "s"}"#,
        r#"{"access_key_id": "id", "secret_access_key": "s"}"#,
    ] {
        let Ok(Credentials::Aws(key)) = parse("r2", text) else { panic!("{text}") };
        assert_eq!((key.access_key_id.as_deref(), key.region), (Some("id"), None));
    }
}

/// Checks the errors about wrong secrets, word for word.
#[test]
fn credentials_that_are_wrong_are_refused_without_showing_them() {
    const AWS: &str = "the AWS credentials";
    const AWS_FORM: &str =
        r#"expected {"aws_access_key_id": .., "aws_secret_access_key": .., "aws_region": ..}"#;
    const R2_FORM: &str = r#"expected {"aws_access_key_id": .., "aws_secret_access_key": ..}"#;
    const GCP_FORM: &str = r#"expected the key of a service account: {"type": "service_account", "client_email": .., "private_key": .., ..}"#;
    const AZURE_FORM: &str = r#"expected an account key, a SAS, or {"account_key": ..}, {"sas_token": ..}, {"tenant_id": .., "client_id": .., "client_secret": ..}"#;
    const WEB_FORM: &str =
        r#"expected a bearer token, user:password, {"token": ..}, or {"username": .., "password": ..}"#;
    for (scheme, text, said) in [
        ("hf", "", "the Hugging Face credentials are empty; expected a token alone: hf_..".to_owned()),
        ("hf", r#"{"token": "hush"}"#, "the Hugging Face credentials are JSON; expected a token alone: hf_..".into()),
        (
            "hf",
            "hush\nhush",
            "the Hugging Face credentials contain characters other than letters, digits and signs, perhaps a space or a \
             second line; expected a token alone: hf_.."
                .into(),
        ),
        ("s3", "hush", format!("{AWS} are not JSON (line 1, column 1); {AWS_FORM}")),
        ("s3", r#"["hush"]"#, format!("{AWS} are not a JSON object; {AWS_FORM}")),
        ("s3", r#"{"aws_access_key_id": "hush"}"#, format!(r#"{AWS} lack "aws_secret_access_key"; {AWS_FORM}"#)),
        (
            "s3",
            r#"{"aws_access_key_id": "hush", "aws_secret_access_key": "hush"}"#,
            format!(r#"{AWS} lack "aws_region"; {AWS_FORM}"#),
        ),
        (
            "s3",
            r#"{"aws_access_key_id": ["hush"]}"#,
            format!(r#"{AWS} are wrong: "aws_access_key_id" must be a string that is not empty; {AWS_FORM}"#),
        ),
        ("r2", "{}", format!(r#"the R2 credentials lack "aws_access_key_id"; {R2_FORM}"#)),
        ("cw", "{}", format!(r#"the CoreWeave credentials lack "aws_access_key_id"; {R2_FORM}"#)),
        (
            "gs",
            r#"{"type": "hush"}"#,
            format!(
                r#"the Google credentials have another "type" than "service_account", "authorized_user" and "external_account"; {GCP_FORM}"#
            ),
        ),
        (
            "gs",
            r#"{"type": "external_account", "audience": "hush"}"#,
            format!(r#"the Google credentials lack "credential_source"; {GCP_FORM}"#),
        ),
        (
            "gs",
            r#"{"type": "external_account", "credential_source": {"executable": {"command": "hush"}}}"#,
            format!(
                r#"the Google credentials have a "credential_source" that is not supported: it must have a "file" or a "url" with the machine's token; {GCP_FORM}"#
            ),
        ),
        (
            "gs",
            r#"{"type": "authorized_user", "client_id": "hush", "client_secret": "hush"}"#,
            format!(r#"the Google credentials lack "refresh_token"; {GCP_FORM}"#),
        ),
        (
            "s3",
            r#"{"aws_access_key_id": "hush", "aws_secret_access_key": "hush", "aws_region": "hush", "aws_expiration": "hush"}"#,
            format!(r#"{AWS} are wrong: "aws_expiration" is not a time (2026-01-02T03:04:05Z); {AWS_FORM}"#),
        ),
        (
            "gs",
            r#"{"type": "service_account", "client_email": "hush", "private_key": "hush"}"#,
            format!(
                r#"the Google credentials are wrong: "private_key" is not PEM (it begins with -----BEGIN); {GCP_FORM}"#
            ),
        ),
        ("azure", " ", format!("the Azure credentials are empty; {AZURE_FORM}")),
        ("azure", "hush hush", format!("the Azure credentials have an account key that is not base64; {AZURE_FORM}")),
        (
            "azure",
            "?sig=",
            format!(r#"the Azure credentials have a SAS that is not a query with "sig=" (sv=..&sig=..); {AZURE_FORM}"#),
        ),
        (
            "azure",
            "AccountName=hush;AccountKey=hush",
            format!(
                "the Azure credentials are a connection string; only its key or signature is needed; {AZURE_FORM}"
            ),
        ),
        (
            "azure",
            r#"{"more": "hush"}"#,
            format!(
                r#"the Azure credentials have none of "account_key", "sas_token" and "client_id"; {AZURE_FORM}"#
            ),
        ),
        (
            "azure",
            r#"{"account_key": "hush", "client_id": "hush"}"#,
            format!(
                r#"the Azure credentials have several of "account_key", "sas_token" and "client_id"; {AZURE_FORM}"#
            ),
        ),
        (
            "azure",
            r#"{"client_id": "hush"}"#,
            format!(r#"the Azure credentials lack "tenant_id"; {AZURE_FORM}"#),
        ),
        ("https", "{}", format!(r#"the https credentials have neither "token" nor "username"; {WEB_FORM}"#)),
        (
            "https",
            r#"{"token": "hush", "username": "hush"}"#,
            format!(r#"the https credentials have both "token" and "username"; {WEB_FORM}"#),
        ),
        (
            "https",
            r#"{"username": "hu:sh", "password": "hush"}"#,
            format!(
                "the https credentials have a user name with a colon, which basic authentication cannot send; {WEB_FORM}"
            ),
        ),
        ("https", "me:hush\nhush", format!("the https credentials contain a control character; {WEB_FORM}")),
        ("file", "hush", "file:// takes no credentials".into()),
    ] {
        let error = parse(scheme, text).expect_err(text);
        assert_eq!(error.to_string(), said);
        assert!(!format!("{error:?}").contains("hush"), "{error:?}");
    }
}
