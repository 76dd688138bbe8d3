//! Filters of captures: programs of classic BPF.
//!
//! Problem: filters are written in libpcap's language. Approach: the client has libpcap compile
//! them, so that the daemon has neither the language nor the library; this checks the program as
//! the kernel does, and runs it.
//!
//! Limits: jumps go forward, so a program of n instructions takes n steps at most. The instructions
//! are those that libpcap makes for a file: the kernel's extensions, at negative offsets, lie
//! outside of each packet.
//!
//! Source: McCanne and Jacobson, "The BSD Packet Filter", USENIX 1993; libpcap's `bpf_filter`.

use sluice_api::ApiError;
use sluice_api::model::Instruction;
use sluice_dataplane::trace::PacketTest;

/// Most instructions, as in the kernel.
const MOST: usize = 4096;
/// Words of scratch memory.
const MEMORY: usize = 16;

/// Why a program is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the filter's {what}; send what `sluice capture --filter` makes of an expression (libpcap's pcap_compile)")]
pub struct FilterError {
    what: String,
}

/// A program that ends, reads nothing but the packet, and writes nothing but its own memory.
#[derive(Debug, Clone)]
pub struct PacketFilter(Box<[Instruction]>);

/// The class of an instruction: its lower three bits.
mod class {
    pub const LD: u16 = 0;
    pub const LDX: u16 = 1;
    pub const ST: u16 = 2;
    pub const STX: u16 = 3;
    pub const ALU: u16 = 4;
    pub const JMP: u16 = 5;
    pub const RET: u16 = 6;
}

/// Whole codes: class, size, mode, operation and source.
mod code {
    pub const LD_IMM: u16 = 0x00;
    pub const LD_LEN: u16 = 0x80;
    pub const LD_MEM: u16 = 0x60;
    pub const LD_W_ABS: u16 = 0x20;
    pub const LD_H_ABS: u16 = 0x28;
    pub const LD_B_ABS: u16 = 0x30;
    pub const LD_W_IND: u16 = 0x40;
    pub const LD_H_IND: u16 = 0x48;
    pub const LD_B_IND: u16 = 0x50;
    pub const LDX_IMM: u16 = 0x01;
    pub const LDX_LEN: u16 = 0x81;
    pub const LDX_MEM: u16 = 0x61;
    pub const LDX_MSH: u16 = 0xb1;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const JA: u16 = 0x05;
    pub const RET_K: u16 = 0x06;
    pub const RET_A: u16 = 0x16;
    pub const TAX: u16 = 0x07;
    pub const TXA: u16 = 0x87;
}

/// The operand of a calculation or comparison is X, not the constant.
const FROM_X: u16 = 0x08;

/// Operations of [`class::ALU`], without their operand.
mod alu {
    pub const ADD: u16 = 0x00;
    pub const SUB: u16 = 0x10;
    pub const MUL: u16 = 0x20;
    pub const DIV: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const LSH: u16 = 0x60;
    pub const RSH: u16 = 0x70;
    pub const NEG: u16 = 0x80;
    pub const MOD: u16 = 0x90;
    pub const XOR: u16 = 0xa0;
}

/// Comparisons of [`class::JMP`], without their operand.
mod jump {
    pub const EQUAL: u16 = 0x10;
    pub const GREATER: u16 = 0x20;
    pub const NOT_LESS: u16 = 0x30;
    pub const BITS: u16 = 0x40;
}

/// The operation in a code: its upper four bits.
fn operation(code: u16) -> u16 {
    code & 0xf0
}

impl PacketTest for PacketFilter {
    fn accepts(&self, packet: &[u8], len: u32) -> bool {
        self.run(packet, len).is_some_and(|bytes| bytes > 0)
    }
}

impl PacketFilter {
    /// Checks a program.
    ///
    /// # Errors
    /// [`FilterError`]: it might not end, or has an instruction that is unknown or out of bounds.
    pub fn new(program: Vec<Instruction>) -> Result<Self, FilterError> {
        let refuse = |what: String| Err(FilterError { what });
        if program.is_empty() || program.len() > MOST {
            return refuse(format!("program has {} instructions, and 1 to {MOST} are possible", program.len()));
        }
        if program.last().is_none_or(|last| last.code & 7 != class::RET) {
            return refuse("program does not end with a return".into());
        }
        for (at, instruction) in program.iter().enumerate() {
            if let Some(what) = fault(instruction, program.len() - at - 1) {
                return refuse(format!("instruction {at} (code {:#x}) {what}", instruction.code));
            }
        }
        Ok(Self(program.into()))
    }

    /// The program of a request; an empty one accepts all packets, and is none.
    ///
    /// # Errors
    /// As [`Self::new`], as an answer.
    pub fn asked(program: &[Instruction]) -> Result<Option<Self>, ApiError> {
        let checked = (!program.is_empty()).then(|| Self::new(program.to_vec())).transpose();
        checked.map_err(|error| ApiError::unprocessable(error.to_string(), ""))
    }

    /// Bytes of the packet to keep; `None` if it reads behind the packet or divides by zero.
    fn run(&self, packet: &[u8], len: u32) -> Option<u32> {
        let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; MEMORY], 0);
        loop {
            // The check has bounded every jump and every index.
            let Instruction { code, jt, jf, k } = *self.0.get(at)?;
            at += 1;
            match code {
                code::LD_IMM => a = k,
                code::LD_LEN => a = len,
                code::LD_MEM => a = *memory.get(k as usize)?,
                code::LD_W_ABS => a = load(packet, 0, k, 4)?,
                code::LD_H_ABS => a = load(packet, 0, k, 2)?,
                code::LD_B_ABS => a = load(packet, 0, k, 1)?,
                code::LD_W_IND => a = load(packet, x, k, 4)?,
                code::LD_H_IND => a = load(packet, x, k, 2)?,
                code::LD_B_IND => a = load(packet, x, k, 1)?,
                code::LDX_IMM => x = k,
                code::LDX_LEN => x = len,
                code::LDX_MEM => x = *memory.get(k as usize)?,
                code::LDX_MSH => x = (load(packet, 0, k, 1)? & 0xf) << 2,
                code::ST => *memory.get_mut(k as usize)? = a,
                code::STX => *memory.get_mut(k as usize)? = x,
                code::JA => at = at.checked_add(k as usize)?,
                code::RET_K => return Some(k),
                code::RET_A => return Some(a),
                code::TAX => x = a,
                code::TXA => a = x,
                code => {
                    let operand = if code & FROM_X != 0 { x } else { k };
                    if code & 7 == class::ALU {
                        a = calculate(operation(code), a, operand)?;
                    } else {
                        at += usize::from(if holds(operation(code), a, operand)? { jt } else { jf });
                    }
                }
            }
        }
    }
}

/// What is wrong with an instruction that has `behind` others behind it.
fn fault(instruction: &Instruction, behind: usize) -> Option<&'static str> {
    let Instruction { code, jt, jf, k } = *instruction;
    let is_known = match code & 7 {
        class::LD => {
            use code::{LD_B_ABS, LD_B_IND, LD_H_ABS, LD_H_IND, LD_IMM, LD_LEN, LD_MEM, LD_W_ABS, LD_W_IND};
            matches!(code, LD_IMM | LD_LEN | LD_MEM | LD_W_ABS | LD_H_ABS | LD_B_ABS | LD_W_IND | LD_H_IND | LD_B_IND)
        }
        class::LDX => matches!(code, code::LDX_IMM | code::LDX_LEN | code::LDX_MEM | code::LDX_MSH),
        class::ST | class::STX => matches!(code, code::ST | code::STX),
        class::ALU => code <= 0xff && calculate(operation(code), 1, 1).is_some(),
        class::JMP => code == code::JA || code <= 0xff && holds(operation(code), 0, 0).is_some(),
        class::RET => matches!(code, code::RET_K | code::RET_A),
        _ => matches!(code, code::TAX | code::TXA),
    };
    if !is_known {
        return Some("is unknown");
    }
    let leads_out = match code {
        code::JA => k as usize >= behind,
        _ => code & 7 == class::JMP && usize::from(jt.max(jf)) >= behind,
    };
    let uses_memory = matches!(code, code::LD_MEM | code::LDX_MEM | code::ST | code::STX);
    let by_zero = code & 7 == class::ALU && code & FROM_X == 0 && matches!(operation(code), alu::DIV | alu::MOD) && k == 0;
    let faults = [
        (leads_out, "jumps behind the program"),
        (uses_memory && k as usize >= MEMORY, "uses memory that there is not"),
        (by_zero, "divides by zero"),
    ];
    faults.into_iter().find_map(|(is, what)| is.then_some(what))
}

/// A number in network byte order at `x + k`.
fn load(packet: &[u8], x: u32, k: u32, size: usize) -> Option<u32> {
    let at = x.checked_add(k)? as usize;
    let bytes = packet.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

fn calculate(operation: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        alu::ADD => a.wrapping_add(operand),
        alu::SUB => a.wrapping_sub(operand),
        alu::MUL => a.wrapping_mul(operand),
        alu::DIV => a.checked_div(operand)?,
        alu::MOD => a.checked_rem(operand)?,
        alu::OR => a | operand,
        alu::AND => a & operand,
        alu::XOR => a ^ operand,
        alu::LSH => a.checked_shl(operand).unwrap_or(0),
        alu::RSH => a.checked_shr(operand).unwrap_or(0),
        alu::NEG => a.wrapping_neg(),
        _ => return None,
    })
}

fn holds(operation: u16, a: u32, operand: u32) -> Option<bool> {
    Some(match operation {
        jump::EQUAL => a == operand,
        jump::GREATER => a > operand,
        jump::NOT_LESS => a >= operand,
        jump::BITS => a & operand != 0,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn program(instructions: &[(u16, u8, u8, u32)]) -> Vec<Instruction> {
        instructions.iter().map(|(code, jt, jf, k)| Instruction { code: *code, jt: *jt, jf: *jf, k: *k }).collect()
    }

    /// `tcpdump -y EN10MB -ddd 'tcp port 80 and net 10.0.0.0/8'`, with libpcap 1.10.
    const TCP_80: [(u16, u8, u8, u32); 20] = [
        (0x28, 0, 0, 12),
        (0x15, 17, 0, 0x86dd),
        (0x15, 0, 16, 0x800),
        (0x30, 0, 0, 23),
        (0x15, 0, 14, 6),
        (0x28, 0, 0, 20),
        (0x45, 12, 0, 0x1fff),
        (0xb1, 0, 0, 14),
        (0x48, 0, 0, 14),
        (0x15, 2, 0, 80),
        (0x48, 0, 0, 16),
        (0x15, 0, 7, 80),
        (0x20, 0, 0, 26),
        (0x54, 0, 0, 0xff00_0000),
        (0x15, 3, 0, 0x0a00_0000),
        (0x20, 0, 0, 30),
        (0x54, 0, 0, 0xff00_0000),
        (0x15, 0, 1, 0x0a00_0000),
        (0x06, 0, 0, 262_144),
        (0x06, 0, 0, 0),
    ];

    fn packet(protocol: u8, source: [u8; 4], to_port: u16) -> Vec<u8> {
        let mut packet = vec![0; 60];
        packet[12..14].copy_from_slice(&[8, 0]);
        packet[14] = 0x45;
        packet[23] = protocol;
        packet[26..30].copy_from_slice(&source);
        packet[30..34].copy_from_slice(&[192, 0, 2, 1]);
        packet[36..38].copy_from_slice(&to_port.to_be_bytes());
        packet
    }

    #[test]
    fn a_filter_of_libpcap_accepts_what_its_expression_says() {
        let filter = PacketFilter::new(program(&TCP_80)).unwrap();
        for (protocol, source, port, wanted) in [
            (6, [10, 1, 2, 3], 80, true),
            (6, [11, 1, 2, 3], 80, false),
            (6, [10, 1, 2, 3], 81, false),
            (17, [10, 1, 2, 3], 80, false),
        ] {
            assert_eq!(filter.accepts(&packet(protocol, source, port), 60), wanted, "{protocol} {source:?} {port}");
        }
        // The first bytes alone do not say it.
        assert!(!filter.accepts(&packet(6, [10, 0, 0, 1], 80)[..33], 60));
    }

    #[test]
    fn the_length_is_that_of_the_whole_packet() {
        let greater = PacketFilter::new(program(&[(0x80, 0, 0, 0), (0x35, 0, 1, 100), (6, 0, 0, 1), (6, 0, 0, 0)])).unwrap();
        assert!(greater.accepts(&[0; 20], 100) && !greater.accepts(&[0; 20], 99));
    }

    #[test]
    fn what_might_not_end_or_reads_elsewhere_is_refused() {
        let ret = (6, 0, 0, 1);
        for (bad, word) in [
            (vec![], "0 instructions"),
            (vec![ret; MOST + 1], "4097 instructions"),
            (vec![ret, (0, 0, 0, 0)], "does not end with a return"),
            (vec![(0xffff, 0, 0, 0), ret], "instruction 0 (code 0xffff) is unknown"),
            (vec![(5, 0, 0, 1), ret], "jumps behind"),
            (vec![(5, 0, 0, u32::MAX), ret], "jumps behind"),
            (vec![(0x15, 0, 1, 0), ret], "jumps behind"),
            (vec![(0x60, 0, 0, 16), ret], "uses memory"),
            (vec![(0x34, 0, 0, 0), ret], "divides by zero"),
            (vec![(0x94, 0, 0, 0), ret], "divides by zero"),
            (vec![(0xb4, 0, 0, 1), ret], "is unknown"),
            (vec![(0x55, 0, 0, 1), ret], "is unknown"),
        ] {
            let error = PacketFilter::new(program(&bad)).unwrap_err().to_string();
            assert!(error.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn numbers_are_those_of_32_bits() {
        let of =
            |code: u16, k: u32| PacketFilter::new(program(&[(0, 0, 0, 7), (code, 0, 0, k), (0x16, 0, 0, 0)])).unwrap().run(&[], 0);
        for (code, k, wanted) in [
            (0x04, u32::MAX, Some(6)),
            (0x14, 8, Some(u32::MAX)),
            (0x24, 3, Some(21)),
            (0x34, 2, Some(3)),
            (0x94, 4, Some(3)),
            (0x64, 32, Some(0)),
            (0x74, 1, Some(3)),
            (0x84, 0, Some(7u32.wrapping_neg())),
            (0xa4, 5, Some(2)),
            // By X, which is zero.
            (0x3c, 9, None),
        ] {
            assert_eq!(of(code, k), wanted, "{code:#x}");
        }
    }

    proptest! {
        #[test]
        fn every_program_that_is_let_in_ends(
            program in prop::collection::vec((0u16..0x100, 0u8..8, 0u8..8, prop_oneof![0u32..40, any::<u32>()]), 1..40),
            packet in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut instructions = self::program(&program);
            // Those that are refused alone leave, so that most programs are let in.
            let len = instructions.len();
            let mut at = 0;
            instructions.retain(|instruction| {
                at += 1;
                fault(instruction, len - at).is_none()
            });
            instructions.push(Instruction { code: 6, jt: 0, jf: 0, k: 1 });
            if let Ok(filter) = PacketFilter::new(instructions) {
                filter.accepts(&packet, packet.len() as u32);
            }
        }
    }
}
