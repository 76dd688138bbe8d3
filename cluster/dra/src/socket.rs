//! The sockets that the kubelet connects to.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::Server;
use tracing::warn;

/// Time between two looks whether the socket is still there.
const LOOK: Duration = Duration::from_secs(2);

/// A socket's file, which is removed with it.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    file: (u64, u64),
}

impl Socket {
    /// Makes a socket in the place of one that an earlier driver has left.
    fn bind(path: &Path) -> io::Result<(Self, UnixListenerStream)> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let file = identity(path)?;
        Ok((Self { path: path.into(), file }, UnixListenerStream::new(listener)))
    }

    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|file| file == self.file)
    }

    /// Waits until the file is gone.
    async fn gone(&self) {
        while self.is_there() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    std::fs::symlink_metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Serves at a path for ever. A socket whose file was removed, as at a reset of the kubelet, is
/// made anew.
///
/// # Errors
/// The socket cannot be made.
pub(crate) async fn serve<S>(path: &Path, service: S) -> io::Result<()>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    loop {
        let (socket, stream) = Socket::bind(path)?;
        match Server::builder().serve_with_incoming_shutdown(service.clone(), stream, socket.gone()).await {
            Ok(()) => warn!("{} was removed; it is made anew", path.display()),
            Err(error) => warn!("serving at {} has ended: {error}; it goes on", path.display()),
        }
    }
}
