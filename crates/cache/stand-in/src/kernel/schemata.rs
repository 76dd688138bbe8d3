//! The file `schemata` of a group: its masks and bandwidths.

use std::collections::BTreeMap;

use super::{Errno, Group, Kernel};

impl Kernel {
    pub(super) fn schemata(&self, group: &Group, show: impl Fn(u32) -> String) -> String {
        let mut names: Vec<&str> = self.machine.l3_names().to_vec();
        names.extend(self.machine.bandwidth.as_ref().map(|_| "MB"));
        let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
        let value = |name: &str, domain: u32| match group.masks.iter().find(|((n, d), _)| *n == name && *d == domain) {
            Some((_, mask)) => format!("{domain}={}", show(*mask)),
            None => format!("{domain}={:4}", group.bandwidth.get(&domain).copied().unwrap_or(0)),
        };
        let line = |name: &&str| {
            let values: Vec<String> = self.machine.domains.keys().map(|domain| value(name, *domain)).collect();
            format!("{name:>width$}:{}\n", values.join(";"))
        };
        names.iter().map(line).collect()
    }

    pub(super) fn write_schemata(&mut self, name: &str, text: &str) -> Result<(), Errno> {
        let mut masks: BTreeMap<(&'static str, u32), u32> = BTreeMap::new();
        let mut bandwidth: BTreeMap<u32, u32> = BTreeMap::new();
        for line in text.split('\n') {
            let Some((resource, values)) = line.split_once(':') else { return self.refuse("Missing ':'", libc::EINVAL) };
            let resource = resource.trim();
            if values.is_empty() {
                return self.refuse(format!("Missing '{resource}' value"), libc::EINVAL);
            }
            let cache = self.machine.l3_names().iter().find(|known| **known == resource).copied();
            if cache.is_none() && !(resource == "MB" && self.machine.bandwidth.is_some()) {
                return self.refuse(format!("Unknown or unsupported resource name '{resource}'"), libc::EINVAL);
            }
            let mut rest = values;
            // As in the kernel, the line may end with a semicolon, but an empty part before another
            // is an error.
            while !rest.is_empty() {
                let (part, next) = rest.split_once(';').unwrap_or((rest, ""));
                rest = next;
                let parsed = part.split_once('=').and_then(|(id, value)| Some((id.parse::<u32>().ok()?, value.trim())));
                let Some((domain, value)) = parsed else { return self.refuse("Missing '=' or non-numeric domain", libc::EINVAL) };
                if !self.machine.domains.contains_key(&domain) {
                    // The kernel sets no message for it: the status reads "ok".
                    return Err(libc::EINVAL);
                }
                let is_new = match cache {
                    Some(cache) if !masks.contains_key(&(cache, domain)) => {
                        let mask = self.check_mask(name, domain, value)?;
                        masks.insert((cache, domain), mask).is_none()
                    }
                    None if !bandwidth.contains_key(&domain) => {
                        let value = self.check_bandwidth(value)?;
                        bandwidth.insert(domain, value).is_none()
                    }
                    _ => false,
                };
                if !is_new {
                    return self.refuse(format!("Duplicate domain {domain}"), libc::EINVAL);
                }
            }
        }
        let widened = self.machine.widened;
        let group = self.groups.get_mut(name).ok_or(libc::ENOENT)?;
        for (key, mask) in masks {
            group.masks.insert(key, if mask & widened == 0 { mask } else { mask | widened });
        }
        group.bandwidth.extend(bandwidth);
        Ok(())
    }

    fn check_mask(&mut self, name: &str, domain: u32, value: &str) -> Result<u32, Errno> {
        let Ok(mask) = u64::from_str_radix(value.strip_prefix("0x").unwrap_or(value), 16) else {
            return self.refuse(format!("Non-hex character in the mask {value}"), libc::EINVAL);
        };
        let least = self.machine.min_cbm_bits;
        if (least > 0 && mask == 0) || mask > u64::from(self.machine.all()) {
            return self.refuse("Mask out of range", libc::EINVAL);
        }
        let mask = mask as u32;
        let run = if mask == 0 { 0 } else { (mask >> mask.trailing_zeros()).trailing_ones() };
        if self.machine.sparse != Some(true) && run != mask.count_ones() {
            return self.refuse(format!("The mask {mask:x} has non-consecutive 1-bits"), libc::EINVAL);
        }
        if run < least {
            return self.refuse(format!("Need at least {least} bits in the mask"), libc::EINVAL);
        }
        if self.overlaps(name, domain, mask, true) {
            return self.refuse("Overlaps with exclusive group", libc::EINVAL);
        }
        if self.groups[name].exclusive && self.overlaps(name, domain, mask, false) {
            return self.refuse("Overlaps with other group", libc::EINVAL);
        }
        Ok(mask)
    }

    fn check_bandwidth(&mut self, value: &str) -> Result<u32, Errno> {
        let Some(limits) = self.machine.bandwidth.clone() else { return Err(libc::EINVAL) };
        let Ok(value) = value.parse::<u32>() else { return self.refuse(format!("Invalid MB value {value}"), libc::EINVAL) };
        if !(limits.min..=limits.max).contains(&value) {
            return self.refuse(format!("MB value {value} out of range [{},{}]", limits.min, limits.max), libc::EINVAL);
        }
        Ok(value.next_multiple_of(limits.granularity))
    }
}
