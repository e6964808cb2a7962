//! Errors of requests to the API of Kubernetes. Each says what to do.

use std::error::Error;
use std::io;
use std::time::Duration;

/// Bytes of a text of the server in an error.
const MESSAGE_BYTES_MAX: usize = 1_000;

/// Returns a text of the server as errors have it: bounded, and without control characters.
pub(super) fn bounded(text: &str) -> String {
    let text = &text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)];
    text.replace(char::is_control, " ").trim().to_owned()
}

/// A list of pods failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubernetesError {
    /// There is no runtime for the request.
    #[error("cannot ask the API of Kubernetes: {0}")]
    Runtime(io::Error),
    /// The namespace is unknown.
    #[error(
        "the own namespace is unknown, because {path} cannot be read: {why}; set namespace (KUBERNETES_NAMESPACE), or let \
         the pod mount its service account's token (automountServiceAccountToken)"
    )]
    NoNamespace {
        /// The file that names it.
        path: String,
        /// The reason.
        why: String,
    },
    /// The API server cannot be verified, so that another server could get the token.
    #[error(
        "the API server cannot be verified, because the certificates in {path} cannot be read: {why}; set caCertFile \
         (KUBERNETES_CA_CERTIFICATE_FILE), or let the pod mount its service account's token (automountServiceAccountToken)"
    )]
    NoCa {
        /// The file of the certificates.
        path: String,
        /// The reason.
        why: String,
    },
    /// There is no token.
    #[error(
        "there is no token for the API server, because {path} cannot be read: {why}; set saTokenFile \
         (KUBERNETES_SA_TOKEN_FILE), or let the pod mount its service account's token (automountServiceAccountToken)"
    )]
    NoToken {
        /// The file of the token.
        path: String,
        /// The reason.
        why: String,
    },
    /// The client's certificate or key cannot be read.
    #[error("{path} cannot be read: {why}; correct clientCertFile and clientKeyFile")]
    NoIdentity {
        /// The file.
        path: String,
        /// The reason.
        why: String,
    },
    /// The request cannot be made.
    #[error(
        "{server} cannot be asked: {why}; correct masterProtocol, masterHost, masterPort and labels, and the PEM files"
    )]
    Settings {
        /// The API server.
        server: String,
        /// The reason.
        why: String,
    },
    /// There is no connection.
    #[error(
        "there is no connection to {server}: {why}; check masterHost and masterPort (KUBERNETES_SERVICE_HOST and _PORT), \
         and that network policies let the pod reach the API server"
    )]
    Unreachable {
        /// The API server.
        server: String,
        /// The reason.
        why: String,
    },
    /// The API server's certificate is not valid, or TLS fails otherwise.
    #[error(
        "TLS with {server} fails: {why}; check that {ca_file} (caCertFile) has the certificate authority of this cluster, \
         that masterHost is a name or address in the server's certificate, and the clock of this host"
    )]
    Tls {
        /// The API server.
        server: String,
        /// The reason.
        why: String,
        /// The file of the certificates.
        ca_file: String,
    },
    /// There was no answer in time.
    #[error(
        "{server} does not answer within {time_limit:?}; check that the API server is not overloaded, or allow more time: \
         connectTimeout, readTimeout, and the discovery's own, which is join_timeout of GMS"
    )]
    TooSlow {
        /// The API server.
        server: String,
        /// The time.
        time_limit: Duration,
    },
    /// The token or certificate is not accepted.
    #[error(
        "{server} does not accept this member (401: {message}): {credentials} is expired or of another cluster; let the pod \
         mount its service account's token, which Kubernetes renews (it is read for each request)"
    )]
    Unauthorized {
        /// The API server.
        server: String,
        /// The server's text.
        message: String,
        /// The file of the token or certificate.
        credentials: String,
    },
    /// A right is missing.
    #[error("{server} forbids the list (403: {message}); {}", role(.message, .namespace, .resource))]
    Forbidden {
        /// The API server.
        server: String,
        /// The server's text.
        message: String,
        /// The namespace.
        namespace: String,
        /// The listed resource.
        resource: &'static str,
    },
    /// The API server answered with another status.
    #[error(
        "{server} answers with the status {status}: {message}; check namespace, labels and service, and the API server's \
         log"
    )]
    Status {
        /// The API server.
        server: String,
        /// The status.
        status: u16,
        /// The server's text.
        message: String,
    },
    /// The answer exceeds the limit.
    #[error(
        "the answer of {server} has more than {bytes_max} bytes; choose fewer pods: set labels or service"
    )]
    TooLarge {
        /// The API server.
        server: String,
        /// The limit.
        bytes_max: usize,
    },
    /// All answers of a discovery together exceed the limit.
    #[error(
        "the answers of {server} to one discovery have more than {bytes_max} bytes together; choose fewer pods: set labels or \
         service"
    )]
    TooLargeTogether {
        /// The API server.
        server: String,
        /// The limit.
        bytes_max: usize,
    },
    /// The answer cannot be read.
    #[error("the answer of {server} is not a list of Kubernetes: {why}; check masterHost and masterPort")]
    Answer {
        /// The API server.
        server: String,
        /// The reason.
        why: String,
    },
}

impl KubernetesError {
    /// Returns whether the same request can succeed within a few seconds: the kubelet may be exchanging the token, or the API
    /// server be starting.
    pub(super) fn can_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TooSlow { .. } | Self::Unauthorized { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }
}

/// Says which Role is missing and how it is made, for the service account that the server names.
fn role(message: &str, namespace: &str, resource: &str) -> String {
    let account = message.split_once("system:serviceaccount:").map(|(_, rest)| rest);
    let account =
        account.and_then(|rest| rest.split(['"', '\'', ' ']).next()).filter(|name| name.contains(':'));
    let account = account.unwrap_or("NAMESPACE:SERVICEACCOUNT");
    format!(
        "its service account needs a Role with the verb list on {resource} in namespace {namespace}: kubectl create role \
         consort-discovery -n {namespace} --verb=list --resource={resource} && kubectl create rolebinding consort-discovery -n \
         {namespace} --role=consort-discovery --serviceaccount={account}"
    )
}

/// Returns the failure of TLS that an error is. `io::Error`s can hold it, one within the other, but do not have it as source.
fn tls_error<'e>(error: &'e (dyn Error + 'static)) -> Option<&'e rustls::Error> {
    if let Some(tls) = error.downcast_ref() {
        return Some(tls);
    }
    let inner = error.downcast_ref::<io::Error>()?.get_ref()?;
    tls_error(inner)
}

/// Tells failures of TLS from those of connections.
pub(super) fn in_request(error: &(dyn Error + 'static), server: &str, ca_file: &str) -> KubernetesError {
    let (mut cause, mut causes) = (Some(error), Vec::<String>::new());
    while let Some(error) = cause {
        if let Some(tls) = tls_error(error) {
            let (server, ca_file) = (server.to_owned(), ca_file.to_owned());
            return KubernetesError::Tls { server, why: bounded(&tls.to_string()), ca_file };
        }
        causes.push(error.to_string());
        cause = error.source();
    }
    // The first texts repeat the last one, or name only the client's own layers.
    let why = bounded(&causes.pop().unwrap_or_default());
    KubernetesError::Unreachable { server: server.to_owned(), why }
}
