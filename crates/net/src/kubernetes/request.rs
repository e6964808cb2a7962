//! Requests to the API server: each with the token as its file has it now, and with a bounded answer.

use std::fs;
use std::time::Duration;

use consort_group::{KubernetesQuery, PodSelector};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use k8s_openapi::{List, ListableResource};
use kube::api::ListParams;
use kube::client::Body;
use kube::core::{Request, Status};
use kube::{Client, Config, Resource};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::PAGE_LEN;
use super::error::{KubernetesError, in_request};

/// Bytes of one answer. A pod has 4 KiB to 30 KiB.
pub(super) const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Bytes of the text of an error.
const MESSAGE_BYTES_MAX: usize = 1_000;

/// A client of one API server, for one attempt.
pub(super) struct Api<'q> {
    query: &'q KubernetesQuery,
    namespace: &'q str,
    client: Client,
}

fn read(path: &str, missing: fn(String, String) -> KubernetesError) -> Result<Vec<u8>, KubernetesError> {
    fs::read(path).map_err(|error| missing(path.to_owned(), error.to_string()))
}

impl<'q> Api<'q> {
    pub(super) fn new(query: &'q KubernetesQuery, namespace: &'q str) -> Result<Self, KubernetesError> {
        let invalid = |why: String| KubernetesError::Settings { server: query.server.clone(), why };
        let mut config = Config::new(query.server.parse().map_err(|error| invalid(format!("{error}")))?);
        config.connect_timeout = Some(query.connect_timeout);
        config.read_timeout = None;
        config.write_timeout = None;
        config.default_retry = false;
        if query.server.starts_with("https:") {
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
        }
        if let Some((certificate, key)) = &query.client_identity {
            for path in [certificate, key] {
                read(path, |path, why| KubernetesError::NoIdentity { path, why })?;
            }
            config.auth_info.client_certificate = Some(certificate.clone());
            config.auth_info.client_key = Some(key.clone());
        }
        let client = Client::try_from(config).map_err(|error| invalid(error.to_string()))?;
        Ok(Self { query, namespace, client })
    }

    /// Lists objects with these labels and fields, from the token on with which the previous answer ended.
    pub(super) async fn list<K>(
        &self,
        labels: &str,
        fields: Option<&str>,
        continued: Option<String>,
    ) -> Result<List<K>, KubernetesError>
    where
        K: Resource<DynamicType = ()> + ListableResource + DeserializeOwned,
    {
        let parameters = ListParams {
            label_selector: Some(labels.to_owned()).filter(|labels| !labels.is_empty()),
            field_selector: fields.map(str::to_owned),
            limit: Some(PAGE_LEN),
            continue_token: continued,
            ..ListParams::default()
        };
        let request = Request::new(K::url_path(&(), Some(self.namespace))).list(&parameters);
        let mut request = request.map_err(|error| self.settings(error.to_string()))?.map(Body::from);
        if self.query.client_identity.is_none() {
            let no_token = |path, why| KubernetesError::NoToken { path, why };
            let token = read(&self.query.token_file, no_token)?;
            let token = String::from_utf8_lossy(&token);
            let value = format!("Bearer {}", token.trim());
            let value = value.parse().map_err(|_| {
                no_token(self.query.token_file.clone(), "it has bytes that no token has".to_owned())
            })?;
            request.headers_mut().insert("authorization", value);
        }
        let limit = self.query.connect_timeout + self.query.read_timeout;
        let (server, ca_file) = (&self.query.server, &self.query.ca_file);
        let answer = async {
            let response = self.client.send(request).await;
            let response = response.map_err(|error| in_request(&error, server, ca_file))?;
            let status = response.status().as_u16();
            match Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await {
                Ok(body) => Ok((status, body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => {
                    Err(KubernetesError::TooLarge { server: server.clone(), bytes_max: ANSWER_BYTES_MAX })
                }
                Err(error) => Err(in_request(&*error, server, ca_file)),
            }
        };
        let (status, body) = match timeout(limit, answer).await {
            Ok(answer) => answer?,
            Err(_) => return Err(self.too_slow(limit)),
        };
        if status != 200 {
            return Err(self.refused(status, &body));
        }
        serde_json::from_slice(&body).map_err(|error| KubernetesError::Answer {
            server: self.query.server.clone(),
            why: error.to_string(),
        })
    }

    fn settings(&self, why: String) -> KubernetesError {
        KubernetesError::Settings { server: self.query.server.clone(), why }
    }

    fn too_slow(&self, time_limit: Duration) -> KubernetesError {
        KubernetesError::TooSlow { server: self.query.server.clone(), time_limit }
    }

    fn refused(&self, status: u16, body: &[u8]) -> KubernetesError {
        let server = self.query.server.clone();
        let mut message = match serde_json::from_slice::<Status>(body) {
            Ok(status) => status.message,
            Err(_) => String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES_MAX)]).into_owned(),
        };
        message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
        let message = message.replace(char::is_control, " ").trim().to_owned();
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
