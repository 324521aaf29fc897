//! Publications for runtimes that run a command: what they ask the agent for, and how they wait for it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bdnfs::source::{Access, AuthMethod};
use bdnfs_agent::api::client::agent_retry::AGENT_RETRY_INTERVAL;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::publication::{PublicationRequest, PublicationState, PublicationStatus, Staging};
use bdnfs_agent::api::socket;

use crate::access::AccessArgs;
use crate::source::Source;

/// The time for which an agent may be away.
const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The options that say which agent publishes, and for whom.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct PublisherArgs {
    /// Let users name any source, and use this node's credentials: only where administrators alone submit
    #[arg(long)]
    pub trusted: bool,
    /// Control socket of the agent. Default: /run/bdnfs/agent.sock for root
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl PublisherArgs {
    /// The client of the agent.
    pub fn client(&self) -> Result<Client> {
        let socket = self.socket.clone().or_else(socket::well_known);
        Ok(Client::new(socket.context("no control socket of an agent found; name it with --socket")?))
    }

    /// The request for all of `source` on behalf of `consumer`.
    pub fn request(
        &self,
        source: &Source,
        auth: Option<AuthMethod>,
        consumer: String,
    ) -> Result<PublicationRequest> {
        // The agent has the secrets. This node's identity is for those who are trusted.
        let has_secret = auth.as_ref().is_some_and(|auth| auth.secret().is_some());
        let access = match self.trusted && !has_secret {
            true => AccessArgs::default().load_with_auth(source.uri(), auth)?,
            false => Access { auth, ..Access::default() },
        };
        Ok(PublicationRequest {
            source: source.text().clone(),
            allow: None,
            ignore: Vec::new(),
            access,
            secrets: BTreeMap::new(),
            mirror: None,
            tenant: None,
            uid: None,
            gid: None,
            target: None,
            consumer: Some(consumer),
            staging: Staging::Wait,
            layout: None,
            trusted: self.trusted,
            keep: false,
        })
    }
}

/// Asks for a publication until it is published or `until` is there, also when the agent restarts meanwhile.
pub async fn publish_until(
    client: &Client,
    key: &str,
    request: &PublicationRequest,
    until: Instant,
) -> Result<PublicationStatus, ClientError> {
    let mut seen = Instant::now();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match client.publish(key, request, left).await {
            Err(ClientError::NotRunning(_)) if seen.elapsed() < AGENT_TIMEOUT => {
                tokio::time::sleep(AGENT_RETRY_INTERVAL).await;
            }
            // It was there until now.
            Err(error) if error.is_gone() && !matches!(error, ClientError::NotRunning(_)) => {
                seen = Instant::now();
                tokio::time::sleep(AGENT_RETRY_INTERVAL).await;
            }
            // The agent holds a request for an hour at most.
            Ok(status) if status.state == PublicationState::Staging && left >= Duration::from_secs(1) => {}
            answer => return answer,
        }
    }
}

/// Ends the publications whose keys begin with `prefix`, also when the agent restarts meanwhile.
pub async fn unpublish_all(client: &Client, prefix: &str) -> Result<(), ClientError> {
    let begin = Instant::now();
    loop {
        match try_unpublish_all(client, prefix).await {
            Err(error) if error.is_gone() && begin.elapsed() < AGENT_TIMEOUT => {
                tokio::time::sleep(AGENT_RETRY_INTERVAL).await;
            }
            answer => return answer,
        }
    }
}

async fn try_unpublish_all(client: &Client, prefix: &str) -> Result<(), ClientError> {
    let all = client.publications().await?.publications;
    for publication in all.iter().filter(|one| one.key.starts_with(prefix)) {
        client.unpublish(&publication.key).await?;
    }
    Ok(())
}
