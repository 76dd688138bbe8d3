//! The kubelet's interface, of the files in `proto`.

#![allow(missing_docs, clippy::all)]

/// `DRAPlugin`: what the kubelet asks of a driver.
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// `Registration`: how the kubelet learns of a driver.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}
