use ioatlas_dma::{design::Design, invalidation::CombiningConfig};
use ioatlas_sim::timing::{workload::*, *};
fn main() {
    let cpus: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let g: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let params = Params {
        page_share: 500,
        domain_cost: 1000 * g,
        ..Params::default()
    };
    let scenario = Scenario {
        system: System::Design(Design::parse("magazine,strict").unwrap()),
        workload: Workload::RequestResponse,
        driver: Driver {
            costs: params.costs(),
            iovas: Iovas::Scattered,
            requests: Requests::Combined(CombiningConfig {
                cpus_min: 1,
                ranges_max: g as usize,
                ..CombiningConfig::default()
            }),
            ..Driver::default()
        },
        topology: Topology::of_eights(cpus),
        span: Span::fixed(Cycles::from_us(500), Cycles::from_us(2000)),
        seed: 7,
    };
    let run = scenario.run(&params).unwrap().run;
    println!("ops {} /s {}", run.operations(), run.throughput());
    println!("unit {:?}", run.unit);
    let account = run.account();
    println!("{}", format!("{account:?}"));
    for lock in run.locks.iter().take(6) {
        println!(
            "LOCK {} taken {} contended {} waited {}",
            lock.name, lock.taken, lock.contended, lock.waited.0
        );
    }
    for line in run.hottest(14) {
        println!(
            "LINE {} hits {} writes {} near {} far {} mem {} moved {} queued {}",
            line.name,
            line.hits,
            line.writes,
            line.near,
            line.far,
            line.memory,
            line.moved.0,
            line.queued.0
        );
    }
}
