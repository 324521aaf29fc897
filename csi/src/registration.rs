//! Registration at the kubelet: it watches a directory for sockets, and asks at each one what it is.

use std::path::PathBuf;

use bdnfs::error::{Error, Kind};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::proto::pluginregistration::registration_server::Registration;
use crate::proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};

/// The kind of plugin, as the kubelet calls it.
const PLUGIN_TYPE: &str = "CSIPlugin";
/// The version of CSI; a kubelet compares its major number.
const CSI_VERSION: &str = "1.11.0";

/// The service that tells the kubelet which driver this is.
pub struct RegistrationService {
    name: String,
    endpoint: PathBuf,
    refusal: watch::Sender<Option<String>>,
}

impl RegistrationService {
    /// The driver `name`, which the kubelet reaches at `endpoint`; and its refusal to take it, should that come.
    pub fn new(name: String, endpoint: PathBuf) -> (Self, impl Future<Output = Error>) {
        let (refusal, mut refused) = watch::channel(None::<String>);
        let error = async move {
            match refused.wait_for(Option::is_some).await.ok().and_then(|why| why.clone()) {
                Some(why) => {
                    Error::new(Kind::Refused, format!("the kubelet does not register the driver: {why}"))
                }
                None => std::future::pending().await,
            }
        };
        (Self { name, endpoint, refusal }, error)
    }
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: PLUGIN_TYPE.to_owned(),
            name: self.name.clone(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![CSI_VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("the kubelet has registered {}", self.name);
        } else {
            // Ending the process makes the socket anew, for which the kubelet tries again.
            self.refusal.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
