//! Answers to questions about flows.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use sluice_api::model::{FlowOrder, FlowsReply, FlowsRequest, MAX_FLOWS};
use sluice_dataplane::meter::FlowRecord;
use sluice_dataplane::trace::PacketTest;

use super::report::{headers, report};
use super::{FlowLog, FlowNames, locked};
use crate::capture::filter::PacketFilter;

/// A flow that may be in the answer.
struct Candidate {
    score: u64,
    number: Option<u64>,
    record: FlowRecord,
    names: Arc<FlowNames>,
}

/// What is asked for, ready to be compared with.
struct Question<'a> {
    request: &'a FlowsRequest,
    filter: Option<&'a PacketFilter>,
    limit: usize,
}

impl Question<'_> {
    fn covers(&self, record: &FlowRecord, names: &FlowNames) -> bool {
        let FlowsRequest { chain, tenant, dropped, .. } = self.request;
        let is_of_chain = |chain: &String| names.chain(record).as_ref() == Some(chain);
        let is_of_tenant = |tenant: &String| names.tenant(record) == Some(tenant.as_str());
        let accepts = |filter: &PacketFilter| {
            let (bytes, len) = headers(record);
            filter.accepts(&bytes[..len], len as u32)
        };
        dropped.is_none_or(|wanted| wanted == (record.dropped() > 0))
            && chain.as_ref().is_none_or(is_of_chain)
            && tenant.as_ref().is_none_or(is_of_tenant)
            && self.filter.is_none_or(accepts)
    }

    fn score(&self, record: &FlowRecord) -> u64 {
        match self.request.order {
            FlowOrder::Last => record.last_ns(),
            FlowOrder::Bytes => record.bytes(),
            FlowOrder::Packets => record.packets(),
            FlowOrder::Dropped => record.dropped(),
            FlowOrder::Latency => record.latency_ns().map_or(0, |(average, _)| average),
        }
    }

    /// Adds a flow, if it is asked for. Of many, those with the least score are left out.
    fn add(&self, all: &mut Vec<Candidate>, number: Option<u64>, record: &FlowRecord, names: &Arc<FlowNames>) {
        if !self.covers(record, names) {
            return;
        }
        all.push(Candidate { score: self.score(record), number, record: *record, names: names.clone() });
        if all.len() >= 2 * self.limit + 1024 {
            self.cut(all);
        }
    }

    fn cut(&self, all: &mut Vec<Candidate>) {
        all.sort_by_key(|one| Reverse(one.score));
        all.truncate(self.limit);
    }
}

impl FlowLog {
    /// The flows that a request asks for. `names` are those that there are now.
    pub fn answer(&self, request: &FlowsRequest, filter: Option<&PacketFilter>, names: FlowNames) -> FlowsReply {
        *locked(&self.asked) = Instant::now();
        let question = Question { request, filter, limit: request.limit.min(MAX_FLOWS) as usize };
        // Before the flows: each that is counted as ended is shown as ended.
        let log = self.counts();
        let mut all = Vec::new();
        let (missed, next) = match request.after {
            Some(after) => self.ended_after(&question, after, &mut all),
            None => (0, self.all(&question, &Arc::new(names), &mut all)),
        };
        let flows = all.iter().map(|one| report(&one.record, &one.names, self.epoch_ns, one.number)).collect();
        FlowsReply { flows, next, missed, log }
    }

    /// Adds the flows with the greatest scores, up to the limit. Returns the number of the last one
    /// that has ended. One that ends meanwhile may be there twice.
    fn all(&self, question: &Question<'_>, names: &Arc<FlowNames>, all: &mut Vec<Candidate>) -> u64 {
        for flows in self.flows.iter().filter(|_| question.request.live) {
            flows.live(|record| question.add(all, None, &record, names));
        }
        let ended = locked(&self.ended);
        let first = ended.first();
        for ((record, names), number) in ended.kept.iter().zip(first..).filter(|_| question.request.ended) {
            question.add(all, Some(number), record, names);
        }
        question.cut(all);
        ended.last
    }

    /// Adds the flows that ended after one, oldest first, up to the limit. Returns how many are not
    /// kept any more, and the number of the last one that was looked at.
    fn ended_after(&self, question: &Question<'_>, after: u64, all: &mut Vec<Candidate>) -> (u64, u64) {
        let ended = locked(&self.ended);
        let first = ended.first();
        // A greater number is of an earlier log.
        let mut next = if after > ended.last { 0 } else { after };
        let missed = first.saturating_sub(next + 1);
        let skip = (next + 1).saturating_sub(first) as usize;
        for ((record, names), number) in ended.kept.iter().zip(first..).skip(skip) {
            if all.len() == question.limit {
                break;
            }
            next = number;
            if question.covers(record, names) {
                all.push(Candidate { score: 0, number: Some(number), record: *record, names: names.clone() });
            }
        }
        (missed, next)
    }
}
