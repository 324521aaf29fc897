//! Volumes of a StorageClass. A volume is its parameters, so nothing is stored for one, and deleting one removes nothing.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use bdnfs::digest::Digest;
use lru::LruCache;
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

use crate::TrustPolicy;
use crate::pod_identity::PodIdentity;
use crate::proto::csi;
use crate::proto::csi::controller_server::Controller;
use crate::proto::csi::controller_service_capability::{self, rpc};
use crate::proto::csi::volume_capability::AccessType;
use crate::volume_context::VolumeContext;

/// The number of hexadecimal digits of a digest in a volume's id.
const ID_DIGITS: usize = 16;

/// Of how many volumes the capacity is known: those that a cluster creates in a day, in about a MiB.
const KNOWN_CAPACITIES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The CSI controller service: creates volumes of a StorageClass from their parameters.
pub struct ControllerService {
    /// The capacities, in bytes, that the newest volumes were created with, by their names: the specification wants another
    /// capacity under the same name refused. Forgotten at a restart, since no volume depends on it.
    capacities: Mutex<LruCache<String, i64>>,
}

impl Default for ControllerService {
    fn default() -> Self {
        Self { capacities: Mutex::new(LruCache::new(KNOWN_CAPACITIES)) }
    }
}

/// The id of the volume `name` with these parameters.
fn volume_id(name: &str, parameters: &HashMap<String, String>) -> String {
    let sorted: BTreeMap<_, _> = parameters.iter().collect();
    let mut digest = Digest::of(serde_json::json!(sorted).to_string().as_bytes()).to_string();
    digest.truncate(ID_DIGITS);
    format!("{name}-{digest}")
}

/// Whether `id` is that of a volume with these parameters. A call without them, which the specification
/// allows, is accepted for any id that this driver makes.
fn is_volume_id(id: &str, parameters: &HashMap<String, String>) -> bool {
    let Some((name, digits)) = id.rsplit_once('-') else { return false };
    let is_digest =
        digits.len() == ID_DIGITS && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_digest && (parameters.is_empty() || volume_id(name, parameters) == id)
}

/// Refuses volumes that are no directories.
fn check(capabilities: &[csi::VolumeCapability]) -> Result<(), Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are missing"));
    }
    if capabilities.iter().any(|capability| !matches!(capability.access_type, Some(AccessType::Mount(_)))) {
        return Err(Status::invalid_argument("volumes are directories: use volumeMode: Filesystem"));
    }
    Ok(())
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        if request.name.is_empty() {
            return Err(Status::invalid_argument("name is missing"));
        }
        check(&request.volume_capabilities)?;
        if request.volume_content_source.is_some() {
            return Err(Status::invalid_argument(
                "a volume's content is its source: it cannot be a copy of another",
            ));
        }
        // An administrator wrote them. They are checked here, so that a claim that can't work says so at once.
        let policy = TrustPolicy { trust_unmarked: true, pod_tokens: true, ..TrustPolicy::default() };
        let volume_id = volume_id(&request.name, &request.parameters);
        let mut parameters = request.parameters.clone();
        // What only a node has: the file, and the secret and the token that the kubelet will bring.
        parameters.remove("caFile");
        let secret = parameters.get("secretKey").map(|key| (key.clone(), String::new()));
        let token = PodIdentity::sample(parameters.clone());
        let secrets = secret.into_iter().chain(token).collect();
        VolumeContext::new(parameters, secrets).request(&volume_id, &policy)?;
        let capacity_bytes = request.capacity_range.map_or(0, |range| range.required_bytes);
        let known = *self.capacities.lock().get_or_insert(request.name.clone(), || capacity_bytes);
        if known != capacity_bytes {
            let text = format!("volume {} exists with a capacity of {known} bytes", request.name);
            return Err(Status::already_exists(text));
        }
        let volume = csi::Volume { capacity_bytes, volume_id, volume_context: request.parameters };
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        if id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        if let Some((name, _)) = id.rsplit_once('-') {
            self.capacities.lock().pop(name);
        }
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<csi::ValidateVolumeCapabilitiesResponse>, Status> {
        let request = request.into_inner();
        if request.volume_id.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        check(&request.volume_capabilities)?;
        if !is_volume_id(&request.volume_id, &request.volume_context) {
            return Err(Status::not_found(format!("no such volume: {}", request.volume_id)));
        }
        let confirmed = csi::validate_volume_capabilities_response::Confirmed {
            volume_context: request.volume_context,
            volume_capabilities: request.volume_capabilities,
            parameters: request.parameters,
        };
        Ok(Response::new(csi::ValidateVolumeCapabilitiesResponse {
            confirmed: Some(confirmed),
            ..Default::default()
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| {
            let rpc = controller_service_capability::Rpc { r#type: kind.into() };
            csi::ControllerServiceCapability { r#type: Some(controller_service_capability::Type::Rpc(rpc)) }
        };
        let capabilities =
            [rpc::Type::CreateDeleteVolume, rpc::Type::SingleNodeMultiWriter].map(capability).into();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn creation(parameters: &[(&str, &str)]) -> Request<csi::CreateVolumeRequest> {
        let mount = AccessType::Mount(csi::volume_capability::MountVolume::default());
        Request::new(csi::CreateVolumeRequest {
            name: "pvc-1".into(),
            volume_capabilities: vec![csi::VolumeCapability { access_type: Some(mount), access_mode: None }],
            parameters: parameters.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..Default::default()
        })
    }

    #[tokio::test]
    async fn volume_of_a_storage_class_is_its_parameters() {
        let parameters = [
            ("source", "s3://b/p"),
            ("secretKey", "hf"),
            ("endpoint", "https://h"),
            ("caFile", "/on/a/node"),
        ];
        let controller = ControllerService::default();
        let made = async || {
            let made = controller.create_volume(creation(&parameters)).await.expect("valid");
            made.into_inner().volume.expect("a volume")
        };
        let uuid = "11111111-2222-3333-4444-555555555555";
        let provider = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k";
        for identity in [
            &[("source", "s3://b"), ("roleArn", "arn:aws:iam::1:role/r")][..],
            &[("source", "gs://b"), ("workloadIdentityProvider", provider)],
            &[("source", "azure://a/c"), ("clientId", uuid), ("tenantId", uuid)],
        ] {
            controller.create_volume(creation(identity)).await.expect("the token comes with a pod");
        }
        let volume = made().await;
        assert_eq!((volume.volume_context.len(), &volume.volume_id), (4, &made().await.volume_id));
        let validate = async |volume_id: &str, volume_context: &HashMap<String, String>| {
            let request = csi::ValidateVolumeCapabilitiesRequest {
                volume_id: volume_id.to_owned(),
                volume_context: volume_context.clone(),
                volume_capabilities: creation(&[]).into_inner().volume_capabilities,
                ..Default::default()
            };
            controller.validate_volume_capabilities(Request::new(request)).await
        };
        let (known, untold) = (&volume.volume_context, HashMap::new());
        for context in [known, &untold] {
            let answer = validate(&volume.volume_id, context).await.expect("known").into_inner();
            assert!(answer.confirmed.is_some());
        }
        let others = [("a".to_owned(), "b".to_owned())].into();
        for (id, context) in [("pvc-1", known), ("pvc-1", &untold), (&volume.volume_id, &others)] {
            assert_eq!(validate(id, context).await.err().expect("unknown").code(), Code::NotFound);
        }
    }

    #[tokio::test]
    async fn volume_created_again_with_another_capacity_is_refused_until_it_is_deleted() {
        let controller = ControllerService::default();
        let create = async |required_bytes| {
            let mut request = creation(&[("source", "s3://b/p")]).into_inner();
            request.capacity_range = Some(csi::CapacityRange { required_bytes, limit_bytes: 0 });
            controller.create_volume(Request::new(request)).await
        };
        let made = create(1 << 30).await.expect("valid").into_inner().volume.expect("a volume");
        create(1 << 30).await.expect("the same");
        assert_eq!(create(2 << 30).await.err().expect("another").code(), Code::AlreadyExists);
        let deletion = csi::DeleteVolumeRequest { volume_id: made.volume_id, ..Default::default() };
        controller.delete_volume(Request::new(deletion)).await.expect("deleted");
        create(2 << 30).await.expect("a new one");
    }

    #[tokio::test]
    async fn storage_class_with_an_unknown_parameter_is_refused_by_name() {
        let made = ControllerService::default()
            .create_volume(creation(&[("source", "s3://b/p"), ("cacheDir", "/")]))
            .await;
        assert!(made.err().expect("unknown").message().contains("cacheDir"));
    }
}
