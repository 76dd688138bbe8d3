//! Control: the operator's door to the running daemon.
//!
//! Problem: an operator, a script and a monitoring system want to see and change what the daemon does, while packets flow and
//! without any of them being able to hold a packet up. Approach: HTTP/1.1 and JSON on a Unix socket ([`server`]), served by one
//! thread of its own; what is asked for is done by a [`Backend`], which the supervisor is. The words of the API are in [`sluice_api::model`],
//! [`sluice_api::client`] speaks it, and `deploy/openapi.json` describes it to others.
//!
//! Trust: the socket has file mode 0600, and the server asks the kernel for the peer's user as well: only root and the daemon's own
//! user are answered. Limits: see [`server::Limits`].

mod openapi;
pub mod server;
pub mod totals;

use sluice_slo::assignment::Assignment;

use sluice_api::{ApiError, config, model, promise};

/// What the daemon can do for an operator. The supervisor is one; tests have others.
///
/// Calls come from several threads at a time and may take as long as they need: none of them is a packet thread. What a call
/// changes has taken effect when it returns.
///
/// # Errors
/// Each call refuses what can never be ([`sluice_api::ErrorKind::Unprocessable`]), names that nothing has ([`sluice_api::ErrorKind::NotFound`]), what the present state
/// forbids, such as a second port of one name or the removal of one that a chain needs ([`sluice_api::ErrorKind::Conflict`]), and everything
/// during shutdown ([`sluice_api::ErrorKind::ShuttingDown`]). A call that is refused has changed nothing.
#[allow(clippy::missing_errors_doc)] // one section above for all
pub trait Backend: Send + Sync {
    /// What the daemon is and has.
    fn status(&self) -> Result<model::Status, ApiError>;

    /// Everything that is counted.
    fn stats(&self) -> Result<model::Stats, ApiError>;

    /// What was decided about NFs lately, oldest first.
    fn events(&self) -> Result<Vec<model::Event>, ApiError>;

    /// Starts one more instance of a service (or expects one, where instances attach by themselves), on `core` or on the next of
    /// the service's cores. Returns without waiting until it runs. Its `warnings` say what is probably not as it was meant.
    fn add_nf(&self, service: &str, core: Option<usize>) -> Result<model::Nf, ApiError>;

    /// Goes over to another version of a service's program. Returns when new flows meet it and shared instances of the old one have left;
    /// members of a pool leave with their flows. A version that does not work changes nothing.
    fn upgrade(&self, service: &str, to: &model::Upgrade) -> Result<model::Upgraded, ApiError>;

    /// Has an instance on another core take the place of this one, while packets flow: none is lost, and none overtakes another. Returns when
    /// the old one has left. Where the new one does not come up, nothing has changed. Its `warnings` say what is probably not as it was
    /// meant.
    fn move_nf(&self, name: &str, core: usize) -> Result<model::Nf, ApiError>;

    /// Stops an instance: no new packets, those inside come back, then it leaves. The last one of a service that an open chain passes is
    /// removed with `force` alone, and refused without ([`sluice_api::ErrorKind::Conflict`]).
    fn remove_nf(&self, name: &str, force: bool) -> Result<(), ApiError>;

    /// Adds a service and starts its instances.
    fn add_service(&self, service: config::Service) -> Result<model::Service, ApiError>;

    /// Removes a service that no chain has, and stops its instances.
    fn remove_service(&self, name: &str) -> Result<(), ApiError>;

    /// Adds a chain.
    fn add_chain(&self, chain: config::Chain) -> Result<model::Chain, ApiError>;

    /// Removes a chain that no rule has.
    fn remove_chain(&self, name: &str) -> Result<(), ApiError>;

    /// Adds a rule at a place in the order, or last. Flows that are known are classified anew.
    fn add_rule(&self, rule: config::Rule, position: Option<usize>) -> Result<model::Rule, ApiError>;

    /// Removes a rule. Flows that are known are classified anew.
    fn remove_rule(&self, name: &str) -> Result<(), ApiError>;

    /// Gives a tenant fresh packet memory (`-`: that of services without one), and starts its NFs again. Others notice nothing.
    fn renew_memory(&self, tenant: &str) -> Result<(), ApiError>;

    /// Opens a port.
    fn add_port(&self, port: config::Port) -> Result<model::Port, ApiError>;

    /// Closes a port that no chain and no rule has.
    fn remove_port(&self, name: &str) -> Result<(), ApiError>;

    /// Goes over to another configuration by the smallest set of changes, or only says which (`dry_run`). `file` names where the
    /// text came from, for messages.
    fn apply(&self, config: &str, file: Option<&str>, dry_run: bool) -> Result<model::Applied, ApiError>;

    /// Keeps an assignment from now on, instead of the one before; or says what is wrong with it, and the one before stands. Returns when the
    /// packets of its chains go to its instances.
    fn place(&self, assignment: Assignment) -> Result<promise::Placed, ApiError>;

    /// The assignment that is kept.
    fn placement(&self) -> Result<Assignment, ApiError>;

    /// Keeps no assignment any more: chains are as the configuration says.
    fn withdraw(&self) -> Result<promise::Placed, ApiError>;

    /// How promises are kept.
    fn promises(&self) -> Result<promise::Promises, ApiError>;

    /// Follows packets on their way. Blocks until there are as many as asked for, or the time is over.
    fn trace(&self, request: &model::TraceRequest) -> Result<model::Trace, ApiError>;

    /// Starts the daemon's shutdown and returns at once.
    fn shutdown(&self) -> Result<(), ApiError>;
}
