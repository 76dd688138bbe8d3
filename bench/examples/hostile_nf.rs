//! An NF that breaks the rules, for the tests of trust: `hostile_nf MODE`. The modes are those of `sluice_bench::chaos::hostile`.

fn main() -> anyhow::Result<()> {
    let modes = sluice_bench::chaos::hostile::MODES.map(|(name, _)| name).join(", ");
    sluice_bench::chaos::hostile::run(&std::env::args().nth(1).ok_or_else(|| anyhow::anyhow!("name a mode: {modes}"))?)
}
