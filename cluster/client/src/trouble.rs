//! What is wrong, in one line that says what to do.

use std::io::ErrorKind;

use kube::Error;
use kube::config::KubeconfigError;
use kube::core::Status;
use sluice_access::{Certificate, causes};

/// The API server, and what is known of the way to it.
#[derive(Debug, Clone, Default)]
pub struct Place {
    pub server: String,
    /// When the client certificate ended, if it has.
    pub expired: Option<String>,
}

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// As roles have it.
    pub verb: &'a str,
    /// The plural of the kind.
    pub kind: &'a str,
    /// None is the whole cluster.
    pub namespace: Option<&'a str>,
}

/// Whether there is no kubeconfig at all.
pub fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(cause, _) => cause.kind() == ErrorKind::NotFound,
        _ => false,
    }
}

/// Why a kubeconfig cannot be used. `known` are its contexts.
pub fn kubeconfig(error: &KubeconfigError, is_named: bool, known: &[String]) -> String {
    let contexts = || match known {
        [] => "it has none".into(),
        _ => format!("it has {}", known.join(", ")),
    };
    match error {
        KubeconfigError::ReadConfig(cause, path) if is_named => {
            format!("cannot read {}, which $KUBECONFIG names: {cause}", path.display())
        }
        error if is_absent(error) => {
            "there is no kubeconfig: name one in $KUBECONFIG, or put it at ~/.kube/config; `kubectl get nodes` needs the same"
                .into()
        }
        KubeconfigError::LoadContext(name) => {
            format!("the kubeconfig has no context {}: {}", name.trim_matches('"'), contexts())
        }
        KubeconfigError::CurrentContextNotSet => {
            format!("the kubeconfig has no current context: name one with --context; {}", contexts())
        }
        other => format!("the kubeconfig cannot be used: {other}"),
    }
}

/// Why a request has failed.
pub fn explain(error: &Error, asked: &Asked<'_>, place: &Place) -> String {
    match error {
        Error::Api(status) => refused(status, asked, place),
        Error::SerdeError(cause) => format!(
            "the {} of the cluster cannot be read: {cause}; is sluice-cluster of the same version as the chart?",
            asked.kind
        ),
        other => unreachable(other, place),
    }
}

/// What the API server says instead of an answer.
fn refused(status: &Status, asked: &Asked<'_>, place: &Place) -> String {
    let message = status.message.trim();
    let details = status.details.as_ref();
    match status.code {
        401 => match &place.expired {
            Some(end) => format!("the client certificate of the kubeconfig ended on {end}: get another one"),
            None => format!(
                "the API server at {} does not know this user: the token or certificate of the kubeconfig may have expired; see \
                 `kubectl auth whoami`",
                place.server
            ),
        },
        403 if message.contains(" cannot ") => right(message, asked),
        404 if details.is_none_or(|details| details.name.is_empty()) => format!(
            "the cluster at {} has no {} of Sluice: install the chart (helm install sluice cluster/chart --namespace sluice-system)",
            place.server, asked.kind
        ),
        404 if details.is_some_and(|details| details.kind == "namespaces") => format!("{message}: make the namespace first"),
        404 => match details.zip(asked.namespace) {
            Some((details, namespace)) => {
                format!("there is no {} in {namespace}: `sluice slo list --cluster -A` shows all", details.name)
            }
            None => message.into(),
        },
        409 => format!("{message}; change it with the program that has written it"),
        _ => format!("the API server refuses: {message}"),
    }
}

/// The role of the chart that has a right.
fn role(asked: &Asked<'_>) -> &'static str {
    match (asked.namespace, asked.verb) {
        (_, "patch" | "create" | "delete") => "sluice-tenant",
        (Some(_), _) => "sluice-viewer",
        (None, _) => "sluice-reader",
    }
}

fn right(message: &str, asked: &Asked<'_>) -> String {
    let user = message.split_once("User \"").and_then(|(_, rest)| rest.split_once('"')).map_or("USER", |(user, _)| user);
    let Asked { verb, kind, .. } = asked;
    let role = role(asked);
    match asked.namespace {
        Some(namespace) => format!(
            "{user} may not {verb} {kind} in {namespace}: have an administrator bind the role (kubectl create rolebinding NAME \
             --clusterrole={role} --user={user} --namespace={namespace})"
        ),
        None => format!(
            "{user} may not {verb} {kind} of the whole cluster: name a namespace with -n where that is enough, or have an administrator \
             bind the role (kubectl create clusterrolebinding NAME --clusterrole={role} --user={user})"
        ),
    }
}

/// Why there is no answer.
pub fn unreachable(error: &Error, place: &Place) -> String {
    let server = &place.server;
    if let Error::Auth(cause) = error {
        return format!("no credentials for {server}: {cause}; `kubectl auth whoami` needs the same");
    }
    let causes = causes(error);
    let last = causes.last().map(String::as_str).unwrap_or_default();
    match Certificate::of(&causes) {
        Some(Certificate::Expired) => {
            format!("the certificate of the API server at {server} has expired: renew it ({last})")
        }
        Some(Certificate::Early) => {
            format!("the certificate of the API server at {server} is not valid yet: compare the clocks ({last})")
        }
        Some(Certificate::Authority) => {
            format!(
                "the API server at {server} has a certificate of another authority than the kubeconfig names: get its kubeconfig anew"
            )
        }
        Some(Certificate::Name) => {
            format!("the certificate of the API server at {server} is for other names: use one of these in the kubeconfig ({last})")
        }
        None => format!("the API server at {server} does not answer: {last}; is it the right --context?"),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::StatusDetails;

    use super::*;

    fn place(expired: Option<&str>) -> Place {
        Place { server: "https://10.0.0.1:6443".into(), expired: expired.map(str::to_owned) }
    }

    fn said(code: u16, message: &str, object: Option<(&str, &str)>) -> Error {
        let details = object.map(|(kind, name)| StatusDetails {
            name: name.into(),
            group: String::new(),
            kind: kind.into(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        });
        Error::Api(Status { code, message: message.into(), details, ..Status::default() }.boxed())
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let of = Asked { verb: "list", kind: "slos", namespace: Some("acme") };
        let all = Asked { namespace: None, ..of };
        let plans = Asked { kind: "nodeplans", ..all };
        let write = Asked { verb: "patch", ..of };
        let cannot = "slos.sluice.dev is forbidden: User \"jane\" cannot list resource \"slos\" in API group \"sluice.dev\"";
        let cases = [
            (said(404, "404 page not found", None), &of, "install the chart (helm install sluice"),
            (said(404, "slos \"web\" not found", Some(("slos", "web"))), &of, "there is no web in acme"),
            (said(404, "namespaces \"acme\" not found", Some(("namespaces", "acme"))), &write, "make the namespace first"),
            (said(403, cannot, None), &of, "jane may not list slos in acme: have an administrator bind"),
            (said(403, cannot, None), &of, "--clusterrole=sluice-viewer --user=jane --namespace=acme"),
            (said(403, cannot, None), &write, "--clusterrole=sluice-tenant --user=jane --namespace=acme"),
            (said(403, cannot, None), &all, "name a namespace with -n"),
            (said(403, cannot, None), &plans, "jane may not list nodeplans of the whole cluster"),
            (said(403, "slos is forbidden: quota", None), &write, "the API server refuses: slos is forbidden: quota"),
            (said(401, "Unauthorized", None), &of, "may have expired; see `kubectl auth whoami`"),
            (said(409, "conflict with \"kubectl\": .spec.chain", None), &write, "with the program that has written it"),
            (said(422, "mostPps is above 0", None), &write, "the API server refuses: mostPps is above 0"),
        ];
        for (error, asked, wanted) in cases {
            let said = explain(&error, asked, &place(None));
            assert!(said.contains(wanted) && said.lines().count() == 1, "{said}");
        }
        let said = explain(&said(401, "Unauthorized", None), &of, &place(Some("Nov 27 2026")));
        assert_eq!(said, "the client certificate of the kubeconfig ended on Nov 27 2026: get another one");
    }

    #[test]
    fn no_answer_says_why() {
        for (cause, wanted) in [
            ("invalid peer certificate: certificate expired: verification time 1764", "has expired: renew it"),
            ("invalid peer certificate: UnknownIssuer", "of another authority"),
            ("invalid peer certificate: certificate not valid for name \"a\"", "is for other names"),
            ("Connection refused (os error 111)", "does not answer: Connection refused (os error 111); is it the right --context?"),
        ] {
            let said = unreachable(&Error::Service(cause.into()), &place(None));
            assert!(said.contains(wanted) && said.contains("https://10.0.0.1:6443"), "{said}");
        }
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_used_says_why() {
        let missing = || KubeconfigError::ReadConfig(std::io::ErrorKind::NotFound.into(), "/home/jane/.kube/config".into());
        assert!(is_absent(&missing()) && is_absent(&KubeconfigError::FindPath));
        assert!(!is_absent(&KubeconfigError::CurrentContextNotSet));
        assert!(kubeconfig(&missing(), false, &[]).starts_with("there is no kubeconfig: name one in $KUBECONFIG"));
        assert!(kubeconfig(&missing(), true, &[]).starts_with("cannot read /home/jane/.kube/config, which $KUBECONFIG names"));
        let known = ["a".to_string(), "b".to_string()];
        let said = kubeconfig(&KubeconfigError::LoadContext("c".into()), false, &known);
        assert_eq!(said, "the kubeconfig has no context c: it has a, b");
        assert!(kubeconfig(&KubeconfigError::CurrentContextNotSet, false, &[]).contains("--context; it has none"));
    }
}
