//! Endpoint and token of the Hugging Face Hub, from where Hugging Face's own tools read them.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bdnfs::source::{HubAccess, Secret};

/// The variables that hold a token, by precedence.
pub const TOKEN_VARIABLES: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];

/// Loads the Hub's endpoint and token from the environment, else the token of the file that `hf auth login` writes; no token
/// where requests are to be anonymous.
pub fn load(anonymous: bool, env: impl Fn(&str) -> Option<String>) -> Result<HubAccess> {
    let set = |name: &str| env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let token = match TOKEN_VARIABLES.iter().find_map(|name| set(name)) {
        _ if anonymous => None,
        Some(token) => Some(token),
        None => token_file(set).map(read).transpose()?.flatten(),
    };
    Ok(HubAccess { endpoint: set("HF_ENDPOINT"), token: token.map(Secret::new) })
}

/// The path of the token file: HF_TOKEN_PATH, else `token` in HF_HOME, which is `~/.cache/huggingface` by default.
fn token_file(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| env(name).map(PathBuf::from);
    let cache = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let home = || set("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    set("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))
}

/// The token in a file; `None` for a missing or empty file.
fn read(path: PathBuf) -> Result<Option<String>> {
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("cannot read the Hugging Face token in {}", path.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(env: &[(&str, &str)]) -> Option<String> {
        let env =
            |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        load(false, env).expect("readable").token.map(|token| token.expose().to_owned())
    }

    #[test]
    fn token_is_read_by_the_precedence_of_huggingface_hub() {
        let home = tempfile::tempdir().expect("a directory");
        let at = |path: &str| home.path().join(path).to_str().expect("text").to_owned();
        for (directory, text) in
            [(".cache/huggingface", "default\n"), ("xdg/huggingface", "xdg"), ("hf", "home")]
        {
            fs::create_dir_all(at(directory)).expect("mkdir");
            fs::write(at(&format!("{directory}/token")), text).expect("write");
        }
        let (home, xdg, hf) = (at(""), at("xdg"), at("hf"));
        let mut env = vec![("HOME", home.as_str())];
        assert_eq!(token(&env).as_deref(), Some("default"));
        env.push(("XDG_CACHE_HOME", &xdg));
        assert_eq!(token(&env).as_deref(), Some("xdg"));
        env.push(("HF_HOME", &hf));
        assert_eq!(token(&env).as_deref(), Some("home"));
        let nowhere = at("nowhere/token");
        env.push(("HF_TOKEN_PATH", &nowhere));
        assert_eq!(token(&env), None);
        env.push(("HUGGING_FACE_HUB_TOKEN", "old"));
        assert_eq!(token(&env).as_deref(), Some("old"));
        env.push(("HF_TOKEN", " new\n"));
        assert_eq!(token(&env).as_deref(), Some("new"));
    }

    #[test]
    fn anonymous_access_has_the_endpoint_and_no_token() {
        let env = |name: &str| Some(format!("the value of {name}"));
        let hub = load(true, env).expect("valid");
        assert_eq!((hub.token, hub.endpoint.as_deref()), (None, Some("the value of HF_ENDPOINT")));
        let error =
            load(false, |name| (name == "HF_TOKEN_PATH").then(|| "/".to_owned())).expect_err("a directory");
        assert!(format!("{error:#}").contains("cannot read the Hugging Face token in /"), "{error:#}");
    }
}
