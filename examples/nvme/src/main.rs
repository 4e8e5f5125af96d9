// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! The command: takes a controller that is bound to `vfio-pci`, checks every policy on it, and
//! prints what each costs. Reads only, unless told `--destructive`.

use clap::Parser;
use ioatlas_dma::{
    design,
    dma_api::{DmaMapError, PoolError},
    domain::{Domain, DomainConfig, MapError, PolicyConfig},
    translator::Translator,
    units::*,
};
use ioatlas_host::Host;
use ioatlas_nvme::{
    cost::{Cost, Plan, Table},
    memory::Layout,
    nvme::{NvmeError, command::NamespaceId, queue::Depth},
    policy::Policy,
    revoke::RevokeError,
    session::{self, Disk, Orders, Place, Report, SessionError},
    verify::VerifyError,
    vfio::{Msix, Registers, Space},
    window::{Idle, Interrupts, RegisterWindow, Vector},
};
use ioatlas_vfio::{
    device::{Device, PciAddress},
    kernel::Linux,
    space::{AnySpace, SpaceKind},
    translator::Vfio,
};
use std::{error::Error, process::ExitCode, sync::Arc, time::Duration};

/// Drives an NVMe controller that is bound to vfio-pci: verifies each policy of mapping, and prints
/// what a read costs under it.
#[derive(Parser, Debug)]
#[command(name = "ioatlas-nvme", version)]
struct Args {
    /// The controller, as 0000:01:00.0
    nvme: PciAddress,
    /// An edu device of QEMU's beside it, which shows what an unmap revokes
    #[arg(long, value_name = "ADDRESS")]
    edu: Option<PciAddress>,
    /// Number of the namespace to read
    #[arg(long, default_value_t = 1)]
    namespace: u32,
    /// Writes a pattern to the first 8 MiB of the namespace, and so destroys what is there
    #[arg(long, conflicts_with = "pattern")]
    destructive: bool,
    /// The namespace holds the pattern already (see the module `pattern`)
    #[arg(long)]
    pattern: bool,
    /// Shows what the controller does after an unmap, on this slow namespace
    #[arg(long, value_name = "NAMESPACE")]
    late: Option<u32>,
    /// Policies whose reads are verified
    #[arg(long, value_delimiter = ',', default_values_t = Policy::ALL)]
    verify: Vec<Policy>,
    /// Policies whose reads are measured
    #[arg(long, value_delimiter = ',', default_values_t = Policy::ALL)]
    measure: Vec<Policy>,
    /// Sizes of reads, in KiB
    #[arg(long, value_delimiter = ',', default_values_t = [4, 16, 64, 128])]
    kib: Vec<u64>,
    /// Reads under way at once
    #[arg(long, value_delimiter = ',', default_values_t = [8, 64])]
    depth: Vec<u16>,
    /// Reads of a round
    #[arg(long, default_value_t = 4096)]
    reads: u32,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The kernel's kind of address space; auto is iommufd where there is one, else type 1
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    space: Wanted,
    /// When the domain invalidates what was unmapped: strict, deferred-percpu, .. What --edu shows
    /// to be blocked is so under strict ones only
    #[arg(long, default_value = "strict", value_parser = domain_policy, conflicts_with = "edu")]
    domain_policy: PolicyConfig,
    /// How buffers lie in the machine: huge, small, scattered
    #[arg(long, default_value = "small")]
    memory: Layout,
    /// Sleep between looks for completions, in microseconds, so that processor time is the driver's
    /// alone; 0 never sleeps
    #[arg(long, default_value_t = 20)]
    nap: u64,
    /// The clock of this machine counts instructions (QEMU's -icount): say so in the table
    #[arg(long)]
    instructions: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

fn domain_policy(name: &str) -> Result<PolicyConfig, String> {
    let all = || design::policies().map(|policy| policy.config);
    let found = all().find(|policy| policy.name() == name);
    found.ok_or_else(|| {
        let names: Vec<_> = all().map(|policy| policy.name()).collect();
        format!("there are {}", names.join(", "))
    })
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Wanted {
    Auto,
    Type1,
    Iommufd,
}

impl Wanted {
    fn open(self, addresses: &[PciAddress]) -> Result<AnySpace<Linux>, Box<dyn Error>> {
        let kernel = Arc::new(Linux);
        let kind = match self {
            Wanted::Auto => return Ok(AnySpace::open(kernel, addresses)?),
            Wanted::Type1 => SpaceKind::Type1,
            Wanted::Iommufd => SpaceKind::Iommufd,
        };
        let space = AnySpace::open_as(kind, kernel, addresses);
        space.map_err(|error| format!("--space {}: {error}", kind.name()).into())
    }
}

/// Memory for 64 buffers of 132 KiB, bounce pools of as many, and rings.
const ARENA: ByteCount = ByteCount(48 << 20);
/// Vector 0 is that of the administration queue, which is polled here.
const VECTOR: Vector = Vector(1);

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(report) if report.failures.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("ioatlas-nvme: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<Report, Box<dyn Error>> {
    if args.kib.iter().any(|kib| !(1..=128).contains(kib)) || args.depth.contains(&0) {
        return Err("reads are of 1 to 128 KiB, at least one at a time".into());
    }
    let addresses: Vec<PciAddress> = [args.nvme].into_iter().chain(args.edu).collect();
    let space = args.space.open(&addresses)?;
    let (seen, devices) = (Space::of(&space), space.devices().to_vec());
    let memory = Arc::new(args.memory.arena(ARENA)?);
    let config = DomainConfig::default().policy(args.domain_policy);
    let domain = Arc::new(Vfio::domain(memory, space, config)?);
    for address in &addresses {
        domain.attach(address.source())?;
    }
    let calls = || {
        let calls = domain.translator().calls();
        calls.maps + calls.unmaps
    };
    let session = session_on(args, &domain, &devices, &calls);
    let mut report = session.map_err(|error| -> Box<dyn Error> {
        // where the kernel refused a mapping: what that means, and what to do
        let mapping = error.downcast_ref::<SessionError>().and_then(mapping);
        match mapping.and_then(|mapping| domain.translator().explain(mapping)) {
            Some(refused) => format!("{error}: {refused}").into(),
            None => error,
        }
    })?;
    report.space = Some(seen);
    report.layout = Some(args.memory.name());
    report.domain_policy = Some(args.domain_policy.name());
    match args.json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => print(args, &report),
    }
    Ok(report)
}

/// The error of a mapping that ended a session, if one did.
fn mapping(error: &SessionError) -> Option<&MapError> {
    let driver = match error {
        SessionError::Nvme(error)
        | SessionError::Verify(VerifyError::Nvme(error))
        | SessionError::Revoke(RevokeError::Nvme(error)) => error,
        SessionError::Verify(VerifyError::NoPool(PoolError::Map(error)))
        | SessionError::Revoke(RevokeError::NoPool(PoolError::Map(error))) => return Some(error),
        _ => return None,
    };
    match driver {
        NvmeError::Queue(error) | NvmeError::Map(DmaMapError::Direct(error)) => Some(error),
        _ => None,
    }
}

fn session_on<T: Translator<Host>>(
    args: &Args,
    domain: &Arc<Domain<Host, T>>,
    devices: &[Device<Linux>],
    calls: &dyn Fn() -> u64,
) -> Result<Report, Box<dyn Error>> {
    let [nvme, others @ ..] = devices else {
        return Err("no controller".into());
    };
    let edu = others.first().map(Registers::of).transpose()?;
    let msix = Msix::enable(nvme, VECTOR.0 + 1)?;
    let interrupts: &dyn Interrupts = &msix;
    let place = Place {
        domain: domain.clone(),
        nvme: Registers::of(nvme)?,
        edu: edu.map(|registers| registers as Arc<dyn RegisterWindow>),
        interrupts: Some((interrupts, VECTOR)),
        calls: Some(calls),
    };
    let orders = Orders {
        namespace: NamespaceId(args.namespace),
        disk: match (args.destructive, args.pattern) {
            (true, _) => Disk::Destroy,
            (false, true) => Disk::HasPattern,
            (false, false) => Disk::ReadOnly,
        },
        late: args.late.map(NamespaceId),
        idle: match args.nap {
            0 => Idle::Spin,
            us => Idle::Nap(Duration::from_micros(us)),
        },
        verify: args.verify.clone(),
        measure: Plan {
            policies: args.measure.clone(),
            sizes: args.kib.iter().map(|kib| ByteCount(kib << 10)).collect(),
            depths: args.depth.iter().copied().map(Depth).collect(),
            reads: args.reads,
            rounds: args.rounds,
        },
    };
    Ok(session::run(&place, &orders)?)
}

fn print(args: &Args, report: &Report) {
    let Report {
        model, disk_bytes, ..
    } = report;
    println!("{}: {model}, {} MiB", args.nvme, disk_bytes >> 20);
    if let Some(space) = &report.space {
        println!("space: {space}, {}", args.domain_policy.name());
    }
    if let Some(runs) = report.runs {
        println!(
            "memory: {}; a buffer of 128 KiB is {runs} physical runs",
            args.memory
        );
    }
    let reads: u64 = report.verified.iter().map(|v| v.reads).sum();
    println!(
        "verified: {reads} reads under {} policies",
        args.verify.len()
    );
    if let Some(wrong) = report.interrupts_wrong_bytes {
        println!("verified: 16 reads told of by MSI-X, {wrong} wrong bytes");
    }
    if !report.revoked.is_empty() {
        println!("revoked: {} transfers of edu", report.revoked.len());
    }
    if let Some([reads, landed]) = report.late {
        println!(
            "late: of {reads} reads that an unmap overtook, {landed} wrote afterwards (this controller translates when a command begins)"
        );
    }
    let unit = if args.instructions {
        "thousand instructions a read"
    } else {
        "us of processor time a read"
    };
    let table = Table {
        costs: &report.costs,
        of: Cost::cpu,
        unit,
    };
    print!("{table}");
    for failure in &report.failures {
        println!("wrong: {failure}");
    }
    println!(
        "verdict: {}",
        if report.failures.is_empty() {
            "pass"
        } else {
            "FAIL"
        }
    );
}
