//! Passes every packet on, unchanged.

use sluice_nf::{Burst, Context, Handler};

struct Bridge;

impl Handler for Bridge {
    fn burst(&mut self, _burst: &mut Burst<'_>) {}
}

sluice_nf::nf!(|_context: &Context| Ok(Bridge));
