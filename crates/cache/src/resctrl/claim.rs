//! Ownership of classes: one manager, running tools, and leftovers of earlier ones.

use super::{PREFIX, PROFILE, Resctrl, TRIAL, group};
use crate::control::check_name;
use crate::error::CacheError;

/// Classes of tools: a running one holds the lock of `info`.
const TOOLS: [&str; 2] = [PROFILE, TRIAL];

impl Resctrl {
    /// Claims the classes for a manager, before it sweeps and makes classes. No other manager has
    /// them while this value lives. Where the kernel gives no ways, there is nothing to claim.
    ///
    /// # Errors
    /// [`CacheError::Claimed`] while another manager lives; resctrl cannot be read.
    pub fn claim(&mut self) -> Result<(), CacheError> {
        let Some(line) = self.lines.first().filter(|_| self.manager.is_none()) else { return Ok(()) };
        let lock = self.lock_of(&format!("info/{line}")).map_err(|error| match error {
            CacheError::Locked { .. } => CacheError::Claimed { path: self.path.clone() },
            other => other,
        })?;
        self.manager = Some(lock);
        Ok(())
    }

    /// Removes groups left by an earlier manager or a tool that no longer runs, and gives their
    /// ways to the root class. Returns their names.
    ///
    /// # Errors
    /// resctrl cannot be read or changed; everything possible has been removed, and the root class
    /// has the ways that it may have.
    pub fn sweep(&mut self) -> Result<Vec<String>, CacheError> {
        // Held until all is removed, so that no tool starts meanwhile.
        let alone = match self.lock_of("info") {
            Ok(lock) => Some(lock),
            Err(CacheError::Locked { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_of_tool = |name: &str| name.strip_prefix(PREFIX).is_some_and(|class| TOOLS.contains(&class));
        self.remove_left(|name| name.starts_with(PREFIX) && (alone.is_some() || !is_of_tool(name)))
    }

    /// Takes over the one class of a tool, by its name ([`PROFILE`] or [`TRIAL`]): removes the
    /// class that an earlier run has left, and gives its ways to the root class. Returns whether
    /// there was one. Other tools are refused while this value lives.
    ///
    /// # Errors
    /// [`CacheError::Locked`] while another tool runs; resctrl cannot be read or changed.
    pub fn take_over(&mut self, name: &str) -> Result<bool, CacheError> {
        check_name(name)?;
        if self.tool.is_none() {
            self.tool = Some(self.lock_of("info")?);
        }
        let own = group(name);
        Ok(!self.remove_left(|name| name == own)?.is_empty())
    }

    /// Removes leftover groups as far as possible, and widens the root class.
    fn remove_left(&mut self, is_left: impl Fn(&str) -> bool) -> Result<Vec<String>, CacheError> {
        let _lock = self.lock()?;
        let ours = |name: &String| self.classes.keys().any(|class| *name == group(class));
        let left: Vec<String> = self.groups()?.into_iter().filter(|name| is_left(name) && !ours(name)).collect();
        if left.is_empty() {
            return Ok(left);
        }
        // A failure does not stop the removal of the others.
        let removed: Vec<Result<(), CacheError>> = left.iter().map(|name| self.remove_folder(name)).collect();
        let widened = self.widen();
        removed.into_iter().collect::<Result<(), CacheError>>()?;
        widened.map(|()| left)
    }
}
