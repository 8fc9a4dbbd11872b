#[derive(Debug, Clone, Copy)]
pub struct Defect {
    pub name: &'static str,
    pub workload: &'static str,
    pub file: &'static str,
    pub text: &'static str,
    pub instead: &'static str,
}

pub const DEFECTS: &[Defect] = &[];
