//! tmp
fn main() -> anyhow::Result<()> {
    let a: Vec<String> = std::env::args().collect();
    sluice_bench::run(sluice_bench::BenchArgs {
        name: "forward".into(),
        json: Some(a[1].clone().into()),
        seconds: a[2].parse()?,
        repeats: a[3].parse()?,
    })
}
