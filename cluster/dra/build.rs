//! Makes Rust of the kubelet's interface, as Kubernetes publishes it (k8s.io/kubelet v0.34.4).

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = ["k8s.io/kubelet/pkg/apis/dra/v1/api.proto", "k8s.io/kubelet/pkg/apis/pluginregistration/v1/api.proto"];
    let compiled = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().compile_fds(compiled)?;
    Ok(())
}
