//! The least level that is logged, which the configuration may change.
//!
//! The log belongs to the process and not to the supervisor: the program that starts it says how it
//! takes other levels. Without that, as in tests, nothing happens.

use std::sync::OnceLock;

/// Sets the levels, or with `None` those of the command line again.
type Setter = Box<dyn Fn(Option<&str>) + Send + Sync>;

static SETTER: OnceLock<Setter> = OnceLock::new();

/// Has `setter` called for each change of `[manager] log_level`. Only the first call counts.
pub fn on_change(setter: impl Fn(Option<&str>) + Send + Sync + 'static) {
    let _ = SETTER.set(Box::new(setter));
}

pub(crate) fn set(levels: Option<&str>) {
    if let Some(setter) = SETTER.get() {
        setter(levels);
    }
}
