//! Requests of container runtimes about volumes that containers write to.

use hyper::Method;

use super::{Client, ClientError};
use crate::api::container_volume::{ContainerVolumeList, ContainerVolumeRequest, ContainerVolumeStatus};

impl Client {
    /// Asks for a volume, or for the one that is there.
    pub async fn publish_volume(
        &self,
        key: &str,
        request: &ContainerVolumeRequest,
    ) -> Result<ContainerVolumeStatus, ClientError> {
        self.call(Method::PUT, &format!("/v1/volumes/{key}"), Some(request)).await
    }

    /// Ends a volume; also one that is not known. What was written is saved afterwards.
    pub async fn unpublish_volume(&self, key: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, &format!("/v1/volumes/{key}")).await
    }

    /// A volume. It is answered from memory.
    pub async fn volume(&self, key: &str) -> Result<ContainerVolumeStatus, ClientError> {
        self.ask(Method::GET, &format!("/v1/volumes/{key}")).await
    }

    /// All volumes of containers.
    pub async fn volumes(&self) -> Result<ContainerVolumeList, ClientError> {
        self.ask(Method::GET, "/v1/volumes").await
    }
}
