//! The control API of the running daemon.
//!
//! Problem: an operator, a script or a monitoring system inspects and changes the daemon while
//! packets flow, and must never delay a packet. Approach: HTTP/1.1 and JSON on a Unix socket
//! ([`server`]), served by a thread of its own; the supervisor, as the [`Backend`], carries out the
//! requests. [`sluice_api::model`] has the types of the API, [`sluice_api::client`] is its client,
//! and `deploy/openapi.json` describes it.
//!
//! Trust: the socket has file mode 0600, and the server also asks the kernel for the peer's user:
//! only root and the daemon's own user are answered; with `[control] group`, its members, too
//! (mode 0660). Limits: see [`server::Limits`].

mod guest;
mod limits;
mod openapi;
mod routes;
pub mod server;
mod stream;
#[cfg(feature = "page")]
pub mod tcp;
pub mod totals;

use sluice_slo::assignment::Assignment;

use sluice_api::shadow::{ShadowReport, ShadowRequest};
use sluice_api::{ApiError, change, config, model, promise};

/// A stream of bytes in pieces. Each is waited for, a moment at most: then an empty one comes.
pub type Pieces = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// What the daemon can do for an operator. The supervisor implements it; so do tests.
///
/// Calls come from several threads at a time and may block: none of these is a packet thread. A
/// change has taken effect when its call returns.
///
/// # Errors
/// Each call refuses what can never be ([`sluice_api::ErrorKind::Unprocessable`]), unknown names
/// ([`sluice_api::ErrorKind::NotFound`]), what the present state forbids, such as a second port of
/// one name or the removal of one that a chain needs ([`sluice_api::ErrorKind::Conflict`]), and
/// everything during shutdown ([`sluice_api::ErrorKind::ShuttingDown`]). A refused call has changed
/// nothing.
#[allow(clippy::missing_errors_doc)] // one section above for all
pub trait Backend: Send + Sync {
    /// The daemon's state, and what it has.
    fn status(&self) -> Result<model::Status, ApiError>;

    /// All counters.
    fn stats(&self) -> Result<model::Stats, ApiError>;

    /// Recent events, oldest first.
    fn events(&self) -> Result<Vec<model::Event>, ApiError>;

    /// Starts one more instance of a service on `core`, or on the next of the service's cores;
    /// expects one if instances attach by themselves. Returns before it runs. Its `warnings` are
    /// about probable mistakes.
    fn add_nf(&self, service: &str, core: Option<usize>) -> Result<model::Nf, ApiError>;

    /// Changes to another version of a service's program. Returns when new flows go to it and
    /// shared instances of the old one have left; members of a pool leave with their flows. A
    /// version that does not work changes nothing.
    fn upgrade(&self, service: &str, to: &model::Upgrade) -> Result<model::Upgraded, ApiError>;

    /// Gives another version of a service a part of new flows. Returns when it gets them; the
    /// version then takes over, or is given up, by itself.
    fn canary(&self, service: &str, to: &change::CanaryRequest) -> Result<model::Upgraded, ApiError>;

    /// Gives another version of a service copies of packets, and compares what it does with them.
    /// Returns when it gets them; the version then takes over, or is given up, by itself.
    fn shadow(&self, service: &str, to: &ShadowRequest) -> Result<model::Upgraded, ApiError>;

    /// What the comparison of the present or last shadow of a service says.
    fn shadow_report(&self, service: &str) -> Result<ShadowReport, ApiError>;

    /// Gives up the version of a service that has a part of its new flows, or copies.
    fn abort_canary(&self, service: &str) -> Result<(), ApiError>;

    /// Replaces an instance by one on another core while packets flow: none is lost or overtakes
    /// another. Returns when the old one has left. If the new one does not start, nothing has
    /// changed. Its `warnings` report what is probably unintended.
    fn move_nf(&self, name: &str, core: usize) -> Result<model::Nf, ApiError>;

    /// Stops an instance: it gets no new packets, those inside come back, then it leaves. The last
    /// instance of a service on an open chain is removed only with `force`, and otherwise refused
    /// ([`sluice_api::ErrorKind::Conflict`]).
    fn remove_nf(&self, name: &str, force: bool) -> Result<(), ApiError>;

    fn add_service(&self, service: config::Service) -> Result<model::Service, ApiError>;

    /// Removes a service that is in no chain, and stops its instances.
    fn remove_service(&self, name: &str) -> Result<(), ApiError>;

    fn add_chain(&self, chain: config::Chain) -> Result<model::Chain, ApiError>;

    /// Removes a chain that no rule names.
    fn remove_chain(&self, name: &str) -> Result<(), ApiError>;

    /// Adds a rule at a place in the order, or last. Known flows are classified anew.
    fn add_rule(&self, rule: config::Rule, position: Option<usize>) -> Result<model::Rule, ApiError>;

    /// Removes a rule. Known flows are classified anew.
    fn remove_rule(&self, name: &str) -> Result<(), ApiError>;

    /// Gives a tenant fresh packet memory and restarts its NFs; other tenants are not affected. `-`
    /// is the tenant of services without one.
    fn renew_memory(&self, tenant: &str) -> Result<(), ApiError>;

    fn add_port(&self, port: config::Port) -> Result<model::Port, ApiError>;

    /// Closes a port that no chain and no rule names.
    fn remove_port(&self, name: &str) -> Result<(), ApiError>;

    /// Changes to another configuration by the smallest set of changes, or only lists them
    /// (`dry_run`). `file` names the source of the text, for messages.
    fn apply(&self, config: &str, file: Option<&str>, dry_run: bool) -> Result<model::Applied, ApiError>;

    /// Changes keys of the configuration in force, as [`Backend::apply`] does.
    fn set(&self, set: &change::SetKeys) -> Result<model::Applied, ApiError>;

    /// The configuration in force.
    fn running_config(&self) -> Result<change::RunningConfig, ApiError>;

    /// The configurations before the one in force, the latest first.
    fn history(&self) -> Result<Vec<change::FormerConfig>, ApiError>;

    /// Goes back to a former configuration, as [`Backend::apply`] does. It and those after it are
    /// kept no more then.
    fn undo(&self, undo: change::Undo) -> Result<model::Applied, ApiError>;

    /// Puts an assignment in force in place of the former one. A refused one leaves the former in
    /// force. Returns when the packets of its chains go to its instances.
    fn place(&self, assignment: Assignment) -> Result<promise::Placed, ApiError>;

    fn placement(&self) -> Result<Assignment, ApiError>;

    /// Ends the assignment in force: chains are as the configuration says.
    fn withdraw(&self) -> Result<promise::Placed, ApiError>;

    /// How the SLOs are kept.
    fn promises(&self) -> Result<promise::Promises, ApiError>;

    /// Traces packets. Blocks until there are as many as requested, or the time is over.
    fn trace(&self, request: &model::TraceRequest) -> Result<model::Trace, ApiError>;

    /// What a packet would meet if it came now; nothing changes.
    fn why(&self, request: &model::WhyRequest) -> Result<model::WhyReply, ApiError>;

    /// Captures packets: the stream begins at once, and its end or its drop ends the capture.
    fn capture(&self, request: &model::CaptureRequest) -> Result<Pieces, ApiError>;

    /// The flows that there are, and those that have ended lately.
    fn flows(&self, request: &model::FlowsRequest) -> Result<model::FlowsReply, ApiError>;

    /// Records a timeline: the stream is a trace of Perfetto. Its drop ends the recording.
    fn record(&self, request: &model::RecordRequest) -> Result<Pieces, ApiError>;

    /// The timelines that the flight recorder has written, oldest first.
    fn timelines(&self) -> Result<Vec<model::Timeline>, ApiError>;

    /// One of these.
    fn timeline(&self, name: &str) -> Result<Pieces, ApiError>;

    /// Starts the daemon's shutdown and returns at once.
    fn shutdown(&self) -> Result<(), ApiError>;
}
