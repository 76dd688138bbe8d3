//! How the kubelet finds the driver.

use std::path::Path;

use sluice_dra::DriverError;
use sluice_dra::kubelet::registration::registration_client::RegistrationClient;
use sluice_dra::kubelet::registration::{InfoRequest, RegistrationStatus};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::transport::Endpoint;

use crate::kubelet::Server;
use crate::objects::Objects;
use crate::until;

async fn node() -> Server {
    Server::start(Objects::default().client()).await
}

async fn registrar(socket: &Path) -> RegistrationClient<tonic::transport::Channel> {
    let channel = Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap().connect().await.unwrap();
    RegistrationClient::new(channel)
}

#[tokio::test]
async fn the_kubelet_finds_it_and_asks_what_it_is() {
    let mut node = node().await;
    for _ in 0..2 {
        let found = node.registered();
        assert_eq!(found, [node.settings.registration()]);
        let mut kubelet = registrar(&found[0]).await;
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("DRAPlugin", "sluice.dev"));
        assert_eq!(info.supported_versions, ["v1.DRAPlugin"]);
        assert_eq!(Path::new(&info.endpoint), node.settings.endpoint());
        assert!(Path::new(&info.endpoint).exists(), "it is served before the kubelet can know it");
        for (plugin_registered, error) in [(false, "a newer one, please"), (true, "")] {
            kubelet.notify_registration_status(RegistrationStatus { plugin_registered, error: error.into() }).await.unwrap();
        }
        node.stop_driver().await;
        assert!(node.registered().is_empty(), "the kubelet sees that it has gone");
        node.start_driver().await;
    }
}

#[tokio::test]
async fn sockets_of_a_killed_driver_are_replaced() {
    let mut node = node().await;
    node.stop_driver().await;
    for socket in [node.settings.endpoint(), node.settings.registration()] {
        drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    }
    let registration = node.settings.registration();
    node.start_driver().await;
    until("it answers", || std::os::unix::net::UnixStream::connect(&registration).is_ok()).await;
    registrar(&registration).await.get_info(InfoRequest {}).await.unwrap();
}

#[tokio::test]
async fn sockets_that_are_removed_are_made_anew() {
    let node = node().await;
    for socket in [node.settings.registration(), node.settings.endpoint()] {
        std::fs::remove_file(&socket).unwrap();
        until("it is there again", || socket.exists()).await;
        UnixStream::connect(&socket).await.unwrap();
    }
}

#[tokio::test]
async fn one_driver_runs_on_a_node() {
    let node = node().await;
    let error = node.run_another().await.unwrap_err();
    assert!(matches!(error, DriverError::Runs(_)), "{error}");
    registrar(&node.settings.registration()).await.get_info(InfoRequest {}).await.unwrap();
}

/// A request of HTTP/2 without a body, as grpc-go of the kubelet writes it: `:authority` is the
/// path of the socket, with `%2F` for each `/`.
fn request(socket: &Path) -> Vec<u8> {
    let authority = socket.display().to_string().replace('/', "%2F");
    let mut headers = Vec::new();
    let mut add = |prefix: &[u8], texts: &[&str]| {
        headers.extend_from_slice(prefix);
        for text in texts {
            headers.push(u8::try_from(text.len()).unwrap());
            headers.extend_from_slice(text.as_bytes());
        }
    };
    // Of the static table: method POST, scheme http; then names: path, authority, content-type.
    add(&[0x83, 0x86], &[]);
    add(&[0x04], &["/pluginregistration.Registration/GetInfo"]);
    add(&[0x01], &[&authority]);
    add(&[0x0f, 0x10], &["application/grpc"]);
    add(&[0x00], &["te", "trailers"]);
    let mut all = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    for (kind, flags, stream, body) in [(0x4, 0, 0, &[][..]), (0x1, 0x4, 1, &headers), (0x0, 0x1, 1, &[0; 5])] {
        all.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes()[1..]);
        all.extend_from_slice(&[kind, flags, 0, 0, 0, stream]);
        all.extend_from_slice(body);
    }
    all
}

/// Reads frames until one of data, whose body it returns, or one that refuses the request.
async fn answer(stream: &mut UnixStream) -> Result<Vec<u8>, String> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.map_err(|error| error.to_string())?;
        let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut body).await.map_err(|error| error.to_string())?;
        match head[3] {
            0x0 => return Ok(body),
            0x3 | 0x7 => return Err(format!("the request is refused: {head:?} {body:?}")),
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_name_of_the_socket_is_one_that_the_kubelet_can_ask_at() {
    let node = node().await;
    let socket = node.settings.registration();
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    stream.write_all(&request(&socket)).await.unwrap();
    let body = answer(&mut stream).await.unwrap();
    assert!(body.windows(9).any(|part| part == b"DRAPlugin"), "{body:?}");
    // With a usual name, it would be refused.
    let mut stream = UnixStream::connect(&socket).await.unwrap();
    stream.write_all(&request(Path::new("/var/lib/kubelet/plugins_registry/sluice.dev-reg.sock"))).await.unwrap();
    answer(&mut stream).await.unwrap_err();
}
