//! Requests to the API server: each with the token as its file has it now, and with a bounded answer.

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use consort_group::{KubernetesQuery, PodSelector};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::api::ListParams;
use kube::client::Body;
use kube::core::Request;
use kube::{Client, Config, Resource};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Deserialize;
use tokio::time::timeout;

use super::answer::{Listed, ObjectList};
use super::error::{KubernetesError, bounded, in_request};
use super::{ANSWERS_BYTES_MAX, PAGE_LEN};

/// Bytes of one answer. A pod has 4 KiB to 30 KiB.
pub(super) const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Bytes of the answer of a failed request.
const FAILURE_BYTES_MAX: usize = 64 << 10;

/// The object of a failed request.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

/// A client of one API server, for one attempt.
pub(super) struct Api<'q> {
    query: &'q KubernetesQuery,
    namespace: &'q str,
    client: Client,
}

fn read(path: &str, missing: fn(String, String) -> KubernetesError) -> Result<Vec<u8>, KubernetesError> {
    fs::read(path).map_err(|error| missing(path.to_owned(), error.to_string()))
}

/// A proxy on this host (`kubectl proxy`) has http, and shows credentials of its own to the API server.
fn is_encrypted(query: &KubernetesQuery) -> bool {
    query.server.starts_with("https:")
}

impl<'q> Api<'q> {
    pub(super) fn new(query: &'q KubernetesQuery, namespace: &'q str) -> Result<Self, KubernetesError> {
        let invalid =
            |why: String| KubernetesError::Settings { server: query.server.clone(), why: bounded(&why) };
        let mut config = Config::new(query.server.parse().map_err(|error| invalid(format!("{error}")))?);
        config.connect_timeout = Some(query.connect_timeout);
        config.read_timeout = None;
        config.write_timeout = None;
        config.default_retry = false;
        if is_encrypted(query) {
            let no_ca = |path, why| KubernetesError::NoCa { path, why };
            let pem = read(&query.ca_file, no_ca)?;
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            match certificates {
                Ok(all) if !all.is_empty() => {
                    config.root_cert = Some(all.into_iter().map(|one| one.to_vec()).collect());
                }
                Ok(_) => return Err(no_ca(query.ca_file.clone(), "it has no certificate".to_owned())),
                Err(error) => return Err(no_ca(query.ca_file.clone(), error.to_string())),
            }
        } else {
            // The client would read the host's authorities, which an image may lack, although there is no TLS.
            config.root_cert = Some(Vec::new());
        }
        if let Some((certificate, key)) = query.client_identity.as_ref().filter(|_| is_encrypted(query)) {
            for path in [certificate, key] {
                read(path, |path, why| KubernetesError::NoIdentity { path, why })?;
            }
            config.auth_info.client_certificate = Some(certificate.clone());
            config.auth_info.client_key = Some(key.clone());
        }
        let client = Client::try_from(config).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { query, namespace, client })
    }

    /// Lists objects with these labels and fields, from the token on with which the previous answer ended. `room`: bytes that
    /// answers may still have.
    pub(super) async fn list<T: Listed>(
        &self,
        labels: &str,
        fields: Option<&str>,
        continued: Option<String>,
        room: &mut usize,
    ) -> Result<ObjectList<T>, KubernetesError> {
        let parameters = ListParams {
            label_selector: Some(labels.to_owned()).filter(|labels| !labels.is_empty()),
            field_selector: fields.map(str::to_owned),
            limit: Some(PAGE_LEN),
            continue_token: continued,
            ..ListParams::default()
        };
        let request = Request::new(T::Object::url_path(&(), Some(self.namespace))).list(&parameters);
        let mut request = request.map_err(|error| self.settings(error.to_string()))?.map(Body::from);
        if let Some(token) = self.token()? {
            let value = token.parse().map_err(|_| KubernetesError::NoToken {
                path: self.query.token_file.clone(),
                why: "it has bytes that no token has".to_owned(),
            })?;
            request.headers_mut().insert("authorization", value);
        }
        let limit = self.query.connect_timeout + self.query.read_timeout;
        let (server, ca_file) = (&self.query.server, &self.query.ca_file);
        let answer = async {
            let response = self.client.send(request).await;
            let response = response.map_err(|error| in_request(&error, server, ca_file))?;
            let status = response.status().as_u16();
            let limit = if status == 200 { ANSWER_BYTES_MAX } else { FAILURE_BYTES_MAX };
            let bytes_max = limit.min(*room);
            match Limited::new(response.into_body(), bytes_max).collect().await {
                Ok(body) => Ok((status, body.to_bytes())),
                Err(error) if !error.is::<LengthLimitError>() => Err(in_request(&*error, server, ca_file)),
                // The status alone has a remedy.
                Err(_) if status != 200 => Ok((status, Bytes::new())),
                Err(_) => Err(self.too_large(bytes_max)),
            }
        };
        let (status, body) = match timeout(limit, answer).await {
            Ok(answer) => answer?,
            Err(_) => return Err(self.too_slow(limit)),
        };
        *room -= body.len();
        if status != 200 {
            return Err(self.refused(status, &body));
        }
        let fail =
            |why: &str| KubernetesError::Answer { server: self.query.server.clone(), why: bounded(why) };
        let list: ObjectList<T> = serde_json::from_slice(&body).map_err(|error| fail(&error.to_string()))?;
        if list.kind != T::LIST_KIND {
            return Err(fail(&format!("it is a {} in place of a {}", list.kind, T::LIST_KIND)));
        }
        Ok(list)
    }

    /// Returns the header with the token as its file has it now. None is sent with a certificate, or without TLS, where each
    /// listener on the network could read it.
    fn token(&self) -> Result<Option<String>, KubernetesError> {
        if self.query.client_identity.is_some() || !is_encrypted(self.query) {
            return Ok(None);
        }
        let token = read(&self.query.token_file, |path, why| KubernetesError::NoToken { path, why })?;
        Ok(Some(format!("Bearer {}", String::from_utf8_lossy(&token).trim())))
    }

    fn too_large(&self, bytes_max: usize) -> KubernetesError {
        let server = self.query.server.clone();
        if bytes_max < ANSWER_BYTES_MAX {
            KubernetesError::TooLargeTogether { server, bytes_max: ANSWERS_BYTES_MAX }
        } else {
            KubernetesError::TooLarge { server, bytes_max }
        }
    }

    fn settings(&self, why: String) -> KubernetesError {
        KubernetesError::Settings { server: self.query.server.clone(), why: bounded(&why) }
    }

    fn too_slow(&self, time_limit: Duration) -> KubernetesError {
        KubernetesError::TooSlow { server: self.query.server.clone(), time_limit }
    }

    fn refused(&self, status: u16, body: &[u8]) -> KubernetesError {
        let server = self.query.server.clone();
        let message = match serde_json::from_slice::<Status>(body) {
            Ok(status) => bounded(&status.message),
            Err(_) => bounded(&String::from_utf8_lossy(body)),
        };
        match status {
            401 => {
                let credentials = match &self.query.client_identity {
                    None => self.query.token_file.clone(),
                    Some((certificate, _)) => certificate.clone(),
                };
                KubernetesError::Unauthorized { server, message, credentials }
            }
            403 => KubernetesError::Forbidden {
                server,
                message,
                namespace: self.namespace.to_owned(),
                resource: match self.query.selector {
                    PodSelector::Labels(_) => "pods",
                    PodSelector::Service(_) => "endpointslices.discovery.k8s.io",
                },
            },
            _ => KubernetesError::Status { server, status, message },
        }
    }
}
