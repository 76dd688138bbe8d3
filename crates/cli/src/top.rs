//! `sluice top`.

use clap::{Args, ValueEnum};

use crate::cluster::Across;
use crate::usage::seconds;

#[derive(Debug, Args)]
pub struct Top {
    /// Seconds between two updates
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, conflicts_with = "cluster")]
    pub interval: f64,
    /// Print one snapshot, as into a pipe
    #[arg(long)]
    pub once: bool,
    /// Column to sort NFs by
    #[arg(long, value_enum, default_value_t = Sort::Name, conflicts_with = "cluster")]
    pub sort: Sort,
    #[command(flatten)]
    pub across: Across,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By name
    Name,
    /// Most packets in first
    In,
    /// Fullest queue first
    Queue,
    /// Most CPU first
    Cpu,
    /// Most drops first
    Drops,
}
