//! What can be wrong with the access of a program.

use std::error::Error as Failed;

use http::Request;
use kube::Error;

/// What a request asks for, as roles have it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    pub verb: &'static str,
    pub group: String,
    /// The plural of the kind, with the subresource: `slos/status`.
    pub resource: String,
    /// None is the whole cluster.
    pub namespace: Option<String>,
}

impl Asked {
    /// What a request asks for; none if it is of no objects.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        let mut parts = request.uri().path().split('/').filter(|part| !part.is_empty());
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let _version = parts.next()?;
        let mut rest: Vec<&str> = parts.collect();
        let mut namespace = None;
        if let ["namespaces", name, _, ..] = rest[..] {
            namespace = Some(name.to_owned());
            rest.drain(..2);
        }
        let resource = match rest[..] {
            [kind, _, sub, ..] => format!("{kind}/{sub}"),
            [kind, ..] => kind.to_owned(),
            [] => return None,
        };
        let is_named = rest.len() > 1;
        let is_watch =
            request.uri().query().is_some_and(|query| query.split('&').any(|one| matches!(one, "watch=true" | "watch=1")));
        let verb = match request.method().as_str() {
            "GET" if is_watch => "watch",
            "GET" if is_named => "get",
            "GET" => "list",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if is_named => "delete",
            "DELETE" => "deletecollection",
            _ => return None,
        };
        Some(Self { verb, group: group.to_owned(), resource, namespace })
    }
}

/// What is wrong with the certificate of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Certificate {
    Expired,
    /// It is not valid yet.
    Early,
    /// It is of an authority that the program does not know.
    Authority,
    /// It is for other names.
    Name,
}

impl Certificate {
    /// By the [`causes`] of an error.
    pub fn of(causes: &[String]) -> Option<Self> {
        let says = |words: &[&str]| causes.iter().any(|cause| words.iter().any(|word| cause.contains(word)));
        match () {
            () if says(&["certificate expired", "CertificateExpired", "Expired"]) => Some(Self::Expired),
            () if says(&["NotValidYet", "not valid yet"]) => Some(Self::Early),
            () if says(&["UnknownIssuer", "BadSignature"]) => Some(Self::Authority),
            () if says(&["NotValidForName", "not valid for name"]) => Some(Self::Name),
            () => None,
        }
    }
}

/// The words of an error and of what has caused it, the first cause last.
pub fn causes(error: &(dyn Failed + 'static)) -> Vec<String> {
    std::iter::successors(Some(error), |&error| error.source()).map(ToString::to_string).collect()
}

/// What is wrong with the access of a program. The gravest is first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The API server does not know the program.
    Unknown,
    /// The program does not take the certificate of the API server.
    Certificate(Certificate),
    /// A right is missing, in the words of [`denied`].
    Right(Asked, String),
}

impl Fault {
    /// What is wrong, and what to do, in one line.
    pub fn message(&self, program: &str) -> String {
        let restart = format!("after a change of what $KUBECONFIG names, restart {program}");
        match self {
            Self::Unknown => format!(
                "the API server does not know {program}: its token or client certificate has expired, or is of another cluster. See \
                 whether its ServiceAccount and its pod are there, and whether the clocks agree; a token in a file is read again within a \
                 minute; {restart}"
            ),
            Self::Certificate(Certificate::Expired) => "the certificate of the API server has expired: renew it".into(),
            Self::Certificate(Certificate::Early) => {
                format!("the certificate of the API server is not valid yet: compare its clock with that of {program}")
            }
            Self::Certificate(Certificate::Authority) => format!(
                "the certificate of the API server is of an authority that {program} does not know: give it the right one (in a pod the \
                 ConfigMap kube-root-ca.crt, which is read again within a minute); {restart}"
            ),
            Self::Certificate(Certificate::Name) => {
                format!(
                    "the certificate of the API server is for other names than the one by which {program} reaches it; {restart}"
                )
            }
            Self::Right(_, message) => message.clone(),
        }
    }
}

/// Whether a request has failed for want of access: it is in the [`Faults`](crate::Faults) already.
pub fn is_fault(error: &Error) -> bool {
    match error {
        Error::Api(status) => status.code == 401 || (status.code == 403 && right(&status.message, "").is_some()),
        other => Certificate::of(&causes(other)).is_some(),
    }
}

/// Why the API server refuses a request and will do so again, and what to do, in one line; none for
/// other failures.
pub fn denied(error: &Error, program: &str) -> Option<String> {
    let Error::Api(status) = error else { return None };
    match status.code {
        401 => Some(Fault::Unknown.message(program)),
        404 | 409 | 429 | 500.. => None,
        _ => Some(right(&status.message, program).unwrap_or_else(|| format!("the API server refuses it: {}", status.message))),
    }
}

/// Which right is missing, and how to give it, by what the API server says of a request that it
/// forbids. None if that is for another reason.
pub(crate) fn right(message: &str, program: &str) -> Option<String> {
    let quoted = |text: &str, before: &str| -> Option<String> {
        let (_, rest) = text.split_once(before)?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let (_, rest) = message.split_once("User \"")?;
    let (user, rest) = rest.split_once("\" cannot ")?;
    let (verb, rest) = rest.split_once(' ')?;
    let resource = quoted(rest, "resource \"")?;
    let (kind, sub) = resource.split_once('/').unwrap_or((&resource, ""));
    let group = quoted(rest, "API group \"").filter(|group| !group.is_empty()).map(|group| format!(".{group}"));
    // The chart gives the rights on a lease by its name. A name of others would make each of them
    // another fault.
    let name = object(message).filter(|_| kind == "leases").map(|name| format!("/{name}"));
    let mut ask = format!("kubectl auth can-i {verb} {kind}{}{}", group.unwrap_or_default(), name.unwrap_or_default());
    if !sub.is_empty() {
        ask += &format!(" --subresource={sub}");
    }
    let place = match quoted(rest, "in the namespace \"") {
        Some(namespace) => {
            ask += &format!(" -n {namespace}");
            format!("in {namespace}")
        }
        None => "of the whole cluster".into(),
    };
    Some(format!(
        "{user} may not {verb} {resource} {place}: `helm upgrade` of the chart writes the roles of {program} and their bindings again; \
         `{ask} --as={user}` says whether it may then"
    ))
}

/// The object that a forbidden request names, as the API server compares it with the names of a
/// role. None if it names none.
pub(crate) fn object(message: &str) -> Option<&str> {
    let (of, _) = message.split_once(" is forbidden: User \"")?;
    of.split_once('"')?.1.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn asked(method: &str, path: &str) -> Option<String> {
        let request = Request::builder().method(method).uri(path).body(()).unwrap();
        let Asked { verb, group, resource, namespace } = Asked::of(&request)?;
        Some(format!("{verb} {group} {resource} {}", namespace.unwrap_or_default()))
    }

    #[test]
    fn a_request_asks_for_what_roles_have() {
        let slos = "/apis/sluice.dev/v1alpha1/namespaces/acme/slos";
        let (web, status) = (format!("{slos}/web"), format!("{slos}/web/status?force=true"));
        for (method, path, wanted) in [
            ("GET", "/api/v1/pods?labelSelector=a&watch=true", "watch  pods "),
            ("GET", "/api/v1/nodes?", "list  nodes "),
            ("PATCH", status.as_str(), "patch sluice.dev slos/status acme"),
            ("GET", web.as_str(), "get sluice.dev slos acme"),
            ("GET", slos, "list sluice.dev slos acme"),
            ("POST", "/api/v1/namespaces/acme/pods/p/eviction", "create  pods/eviction acme"),
            ("PUT", "/apis/sluice.dev/v1alpha1/nodeplans/n0", "update sluice.dev nodeplans "),
            ("DELETE", "/apis/sluice.dev/v1alpha1/nodeplans/n0", "delete sluice.dev nodeplans "),
            ("GET", "/api/v1/namespaces/acme", "get  namespaces "),
        ] {
            assert_eq!(asked(method, path).as_deref(), Some(wanted), "{method} {path}");
        }
        assert_eq!(asked("GET", "/readyz"), None);
        assert_eq!(asked("GET", "/apis"), None);
    }

    fn said(code: u16, message: &str) -> Error {
        Error::Api(Status { code, message: message.into(), ..Status::default() }.boxed())
    }

    #[test]
    fn what_is_refused_says_what_to_do() {
        let user = "system:serviceaccount:sluice-system:sluice-operator";
        let pods = format!(
            "pods \"p\" is forbidden: User \"{user}\" cannot patch resource \"pods\" in API group \"\" in the namespace \"acme\""
        );
        let said_pods = denied(&said(403, &pods), "sluice-operator").unwrap();
        assert!(said_pods.starts_with(&format!("{user} may not patch pods in acme: `helm upgrade`")), "{said_pods}");
        assert!(said_pods.contains(&format!("`kubectl auth can-i patch pods -n acme --as={user}`")), "{said_pods}");
        assert_eq!((object(&pods), object(&pods.replace(" \"p\"", ""))), (Some("p"), None));
        let plans = format!(
            "nodeplans.sluice.dev \"a\" is forbidden: User \"{user}\" cannot patch resource \"nodeplans/status\" in API group \
             \"sluice.dev\" at the cluster scope"
        );
        let said_plans = denied(&said(403, &plans), "sluice-node").unwrap();
        assert!(said_plans.contains("may not patch nodeplans/status of the whole cluster: "), "{said_plans}");
        assert!(said_plans.contains("can-i patch nodeplans.sluice.dev --subresource=status --as="), "{said_plans}");
        let lease = plans.replace("nodeplans.sluice.dev \"a\"", "leases.coordination.k8s.io \"sluice-operator\"");
        let lease = lease.replace("patch resource \"nodeplans/status\"", "update resource \"leases\"");
        let place = "\"coordination.k8s.io\" in the namespace \"sluice-system\"";
        let lease = lease.replace("\"sluice.dev\" at the cluster scope", place);
        let said_lease = denied(&said(403, &lease), "sluice-operator").unwrap();
        let wanted = format!("`kubectl auth can-i update leases.coordination.k8s.io/sluice-operator -n sluice-system --as={user}`");
        assert!(said_lease.contains(&wanted), "{said_lease}");
        let quota = said(403, "pods \"p\" is forbidden: exceeded quota");
        assert_eq!(denied(&quota, "x").unwrap(), "the API server refuses it: pods \"p\" is forbidden: exceeded quota");
        assert!(is_fault(&said(403, &pods)) && !is_fault(&quota) && is_fault(&said(401, "Unauthorized")));
        assert!(denied(&said(401, "Unauthorized"), "sluice-node").unwrap().contains("restart sluice-node"));
        for passing in [404, 409, 429, 500, 503] {
            assert_eq!(denied(&said(passing, "no"), "x"), None);
        }
    }

    #[test]
    fn a_certificate_that_is_not_taken_says_why() {
        let expired = Error::Service("invalid peer certificate: certificate expired: verification time 1764".into());
        assert!(is_fault(&expired) && denied(&expired, "x").is_none());
        for (cause, wanted, words) in [
            ("invalid peer certificate: certificate expired", Certificate::Expired, "renew it"),
            ("invalid peer certificate: certificate not valid yet", Certificate::Early, "clock"),
            ("invalid peer certificate: UnknownIssuer", Certificate::Authority, "kube-root-ca.crt"),
            ("invalid peer certificate: certificate not valid for name \"a\"", Certificate::Name, "other names"),
        ] {
            assert_eq!(Certificate::of(&causes(&Error::Service(cause.into()))), Some(wanted));
            assert!(Fault::Certificate(wanted).message("x").contains(words));
        }
        assert!(!is_fault(&Error::Service("Connection refused (os error 111)".into())));
    }
}
