//! An API server of Kubernetes that answers lists as the test says, over TLS, and the files of a service account.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::Authority;

/// A request to the API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiRequest {
    /// The path with its query, as it was sent.
    pub target: String,
    /// The token.
    pub token: Option<String>,
    /// Whether the client has shown a certificate of the server's own authority.
    pub has_certificate: bool,
}

/// The answer to a request.
pub enum ApiResponse {
    /// A status and its object.
    Json(u16, Value),
    /// Text that is no object.
    Text(u16, String),
    /// None: the connection stays open until the client closes it.
    Silence,
    /// A list that does not end.
    Endless,
}

type Respond = dyn Fn(&ApiRequest) -> ApiResponse + Send + Sync;

/// The API server and the files of a service account. A drop ends the server and removes the files.
pub struct FakeKubernetes {
    /// `token`, `ca.crt` and `namespace`.
    pub directory: PathBuf,
    /// A drop removes its files.
    _authority: Authority,
    address: SocketAddr,
    requests: Arc<Mutex<Vec<ApiRequest>>>,
    is_ended: Arc<AtomicBool>,
}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl FakeKubernetes {
    /// Starts a server with a certificate for its own address, 127.0.0.1.
    pub fn start(respond: impl Fn(&ApiRequest) -> ApiResponse + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1", &["127.0.0.1"], respond)
    }

    /// Starts a server at this address with a certificate for these hosts.
    ///
    /// # Panics
    ///
    /// If it cannot listen or write its files.
    pub fn start_at(
        ip: &str,
        hosts: &[&str],
        respond: impl Fn(&ApiRequest) -> ApiResponse + Send + Sync + 'static,
    ) -> Self {
        let authority = Authority::new(&format!("kubernetes-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        let directory = authority.directory.clone();
        fs::copy(authority.file(), directory.join("ca.crt")).unwrap();
        fs::write(directory.join("token"), "token-1\n").unwrap();
        fs::write(directory.join("namespace"), "shop").unwrap();
        let files = authority.certify("kubernetes", hosts);
        let chain = CertificateDer::pem_file_iter(&files.cert).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
        let verifier =
            WebPkiClientVerifier::builder(Arc::new(roots)).allow_unauthenticated().build().unwrap();
        let config = ServerConfig::builder().with_client_cert_verifier(verifier);
        let config = config.with_single_cert(chain, key).unwrap();
        Self::listen(ip, authority, Some(Arc::new(config)), Arc::new(respond))
    }

    /// Starts a server without TLS, as `kubectl proxy` is.
    ///
    /// # Panics
    ///
    /// If it cannot listen or write its files.
    pub fn start_plain(respond: impl Fn(&ApiRequest) -> ApiResponse + Send + Sync + 'static) -> Self {
        let authority = Authority::new(&format!("kubernetes-{}", NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::write(authority.directory.join("namespace"), "shop").unwrap();
        Self::listen("127.0.0.1", authority, None, Arc::new(respond))
    }

    fn listen(
        ip: &str,
        authority: Authority,
        config: Option<Arc<ServerConfig>>,
        respond: Arc<Respond>,
    ) -> Self {
        let listener = TcpListener::bind((ip, 0)).unwrap();
        let server = Self {
            directory: authority.directory.clone(),
            _authority: authority,
            address: listener.local_addr().unwrap(),
            requests: Arc::default(),
            is_ended: Arc::default(),
        };
        let (requests, is_ended) = (server.requests.clone(), server.is_ended.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if is_ended.load(Ordering::SeqCst) {
                    return;
                }
                let (config, respond, requests) = (config.clone(), respond.clone(), requests.clone());
                // A client that refuses the certificate ends the connection.
                thread::spawn(move || match config {
                    Some(config) => {
                        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
                        let has_certificate = |stream: &StreamOwned<ServerConnection, TcpStream>| {
                            stream.conn.peer_certificates().is_some()
                        };
                        serve(StreamOwned::new(connection, stream), has_certificate, &*respond, &requests)
                    }
                    None => serve(stream, |_| false, &*respond, &requests),
                });
            }
        });
        server
    }

    /// Returns the server's port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns a file of the service account.
    pub fn file(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    /// Takes the requests so far.
    pub fn take_requests(&self) -> Vec<ApiRequest> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

impl Drop for FakeKubernetes {
    fn drop(&mut self) {
        self.is_ended.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn serve<S: Read + Write>(
    stream: S,
    has_certificate: impl Fn(&S) -> bool,
    respond: &Respond,
    requests: &Mutex<Vec<ApiRequest>>,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(mut request) = read_request(&mut stream)? {
        request.has_certificate = has_certificate(stream.get_ref());
        requests.lock().unwrap().push(request.clone());
        let (status, body) = match respond(&request) {
            ApiResponse::Json(status, value) => (status, value.to_string()),
            ApiResponse::Text(status, text) => (status, text),
            ApiResponse::Silence => {
                io::copy(&mut stream, &mut io::sink())?;
                return Ok(());
            }
            ApiResponse::Endless => {
                let out = stream.get_mut();
                out.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n{\"items\":[")?;
                loop {
                    out.write_all(&[b' '; 16 * 1024])?;
                }
            }
        };
        let head = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let out = stream.get_mut();
        out.write_all(head.as_bytes())?;
        out.write_all(body.as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

fn read_request(stream: &mut impl BufRead) -> io::Result<Option<ApiRequest>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut token = None;
    loop {
        line.clear();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            return Ok(Some(ApiRequest { target, token, has_certificate: false }));
        };
        if name.eq_ignore_ascii_case("authorization") {
            token = value.strip_prefix("Bearer ").map(str::to_owned);
        }
    }
}

/// A running and ready pod, with the fields of a real one that lists look at.
pub fn pod(name: &str, ip: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name, "labels": {"app": "grid"}},
        "spec": {"containers": [{"name": "consort", "image": "consort:0.1.0"}], "nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "consort", "ready": true, "restartCount": 0, "image": "consort:0.1.0", "imageID": ""}
            ]
        }
    })
}

/// The answer with these pods.
pub fn pod_list(pods: Vec<Value>) -> ApiResponse {
    let list =
        json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": pods});
    ApiResponse::Json(200, list)
}

/// The answer of a failed request.
pub fn failure(status: u16, reason: &str, message: &str) -> ApiResponse {
    ApiResponse::Json(
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": status
        }),
    )
}
