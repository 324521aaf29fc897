//! The driver for Kubernetes, between a kubelet of the test kit and a real agent.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod condition;
mod driver;
mod events;
mod full_cache;
mod given_up;
mod inline;
mod kit;
mod kubelet_restarts;
mod locality;
mod manual;
mod pod_identity;
mod pod_token;
mod publish;
mod writable_volumes;
