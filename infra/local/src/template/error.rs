//! Why a template cannot be loaded, and where. Nothing is skipped, because a template that is only
//! partly understood would behave differently from the deployed one.

use std::fmt;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// The dotted path inside the template; empty for the whole file.
    pub path: String,
    pub problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Problem {
    NotYaml(String),
    UnknownSection,
    UnknownType(String),
    UnknownProperty,
    UnknownEvent(String),
    UnknownIntrinsic(String),
    UnknownReference(String),
    UnknownParameter,
    ParameterType(String),
    ParameterWithoutValue,
    ValueNotAllowed(String),
    /// The value of a parameter, and the constraint of the template that it violates.
    ValueOutside(String, String),
    Circular,
    Missing(&'static str),
    Expected(&'static str),
    /// A value that AWS accepts and the local stack does not support, with the reason.
    Unsupported(String),
}

impl TemplateError {
    pub fn new(path: impl Into<String>, problem: Problem) -> Self {
        Self { path: path.into(), problem }
    }
}

impl std::error::Error for TemplateError {}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("template.yaml: ")?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        self.problem.fmt(f)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotYaml(why) => write!(f, "not a YAML template: {why}"),
            Self::UnknownSection => write!(f, "the local stack does not know this section"),
            Self::UnknownType(name) => write!(f, "the local stack does not know the type {name}"),
            Self::UnknownProperty => write!(f, "the local stack does not know this property"),
            Self::UnknownEvent(name) => {
                write!(f, "the local stack does not know the event type {name}")
            }
            Self::UnknownIntrinsic(name) => {
                write!(f, "the local stack does not know the function {name}")
            }
            Self::UnknownReference(name) => {
                write!(f, "{name} refers to nothing that the local stack knows")
            }
            Self::UnknownParameter => write!(f, "the template has no such parameter"),
            Self::ParameterType(name) => {
                write!(f, "the local stack does not know the parameter type {name}")
            }
            Self::ParameterWithoutValue => write!(f, "has no default and was given no value"),
            Self::ValueNotAllowed(value) => write!(f, "the value {value:?} is not allowed"),
            Self::ValueOutside(value, wanted) => write!(f, "the value {value:?} is not allowed: it must be {wanted}"),
            Self::Circular => write!(f, "refers to itself"),
            Self::Missing(key) => write!(f, "{key} is missing"),
            Self::Expected(what) => write!(f, "expected {what}"),
            Self::Unsupported(why) => f.write_str(why),
        }
    }
}
