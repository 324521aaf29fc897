//! Volumes for one pod at a time: who asks for one claims it, until the agent knows that it did.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The claims of all calls that are held: by the volume, the key of the publication and how many calls want that.
#[derive(Clone, Debug, Default)]
pub struct SinglePodClaims(Arc<Mutex<BTreeMap<String, (String, usize)>>>);

/// The claim of a call. It ends with the call.
#[derive(Debug)]
pub struct SinglePodClaim {
    claims: SinglePodClaims,
    volume: String,
}

impl SinglePodClaims {
    /// Claims `volume` for the publication `key`; `None` while another one has it.
    pub fn claim(&self, volume: &str, key: &str) -> Option<SinglePodClaim> {
        let mut claims = self.0.lock();
        let (owner, calls) = claims.entry(volume.to_owned()).or_insert_with(|| (key.to_owned(), 0));
        if owner.as_str() != key {
            return None;
        }
        *calls += 1;
        drop(claims);
        Some(SinglePodClaim { claims: self.clone(), volume: volume.to_owned() })
    }
}

impl Drop for SinglePodClaim {
    fn drop(&mut self) {
        let mut claims = self.claims.0.lock();
        if let Some((_, calls)) = claims.get_mut(&self.volume) {
            *calls -= 1;
            if *calls == 0 {
                claims.remove(&self.volume);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_is_claimed_for_one_publication_until_its_last_call_ends() {
        let claims = SinglePodClaims::default();
        let (first, again) = (claims.claim("v", "a"), claims.claim("v", "a"));
        assert!(first.is_some() && again.is_some() && claims.claim("v", "b").is_none());
        assert!(claims.claim("w", "b").is_some());
        drop(first);
        assert!(claims.claim("v", "b").is_none());
        drop(again);
        assert!(claims.claim("v", "b").is_some());
    }
}
