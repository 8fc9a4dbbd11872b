//! Resolves intrinsic functions such as `Ref` and `Fn::Sub`.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::error::{Problem, TemplateError};
use super::names;
use super::node::Node;
use super::yaml::join;

type Result<T> = std::result::Result<T, TemplateError>;

/// Resolves the intrinsics of one template. Physical names may contain intrinsics themselves, so
/// they are resolved on demand.
pub(super) struct Resolver<'a> {
    values: BTreeMap<String, String>,
    conditions: Option<&'a Value>,
    resources: &'a Map<String, Value>,
    /// The names and conditions being resolved, to detect circular references.
    in_progress: RefCell<Vec<String>>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(
        parameters: BTreeMap<String, String>,
        conditions: Option<&'a Value>,
        resources: &'a Map<String, Value>,
    ) -> Self {
        let mut values = names::pseudo_parameters();
        values.extend(parameters);
        Self { values, conditions, resources, in_progress: RefCell::default() }
    }

    /// Returns the value without intrinsics. `None` stands for `AWS::NoValue`, which removes its
    /// key or list item.
    pub(super) fn resolve(&self, node: &Node) -> Result<Option<Value>> {
        if let Some((name, argument)) = intrinsic(node) {
            return self.call(name, &argument);
        }
        match node.value {
            Value::Object(_) => {
                let mut object = Map::new();
                for (key, member) in node.entries()? {
                    if let Some(value) = self.resolve(&member)? {
                        object.insert(key.to_owned(), value);
                    }
                }
                Ok(Some(Value::Object(object)))
            }
            Value::Array(_) => {
                let items = node.items()?;
                let values = items.iter().filter_map(|item| self.resolve(item).transpose());
                values.collect::<Result<Vec<_>>>().map(|list| Some(Value::Array(list)))
            }
            scalar => Ok(Some(scalar.clone())),
        }
    }

    /// Returns the value as text.
    pub(super) fn text(&self, node: &Node) -> Result<String> {
        let value = self.resolve(node)?.unwrap_or_default();
        Node::new(&value, node.path.clone()).text()
    }

    /// Returns whether a named condition holds.
    pub(super) fn holds(&self, name: &str, path: &str) -> Result<bool> {
        let unknown = || TemplateError::new(path, Problem::UnknownReference(name.to_owned()));
        let condition = self.conditions.and_then(|all| all.get(name)).ok_or_else(unknown)?;
        let node = Node::new(condition, format!("Conditions.{name}"));
        self.guarded(&node.path.clone(), || self.truth(&node))
    }

    fn call(&self, name: &str, argument: &Node) -> Result<Option<Value>> {
        match name {
            "Ref" if argument.value == "AWS::NoValue" => Ok(None),
            "Ref" => self.reference(argument.str()?, &argument.path).map(text_value),
            "Fn::GetAtt" => self.get_att(argument).map(text_value),
            "Fn::Sub" => self.sub(argument).map(text_value),
            "Fn::Join" => self.join(argument).map(text_value),
            "Fn::Split" => self.split(argument).map(Some),
            "Fn::Select" => self.select(argument).map(Some),
            "Fn::If" => self.choose(argument),
            other => Err(argument.error(Problem::UnknownIntrinsic(other.to_owned()))),
        }
    }

    fn reference(&self, name: &str, path: &str) -> Result<String> {
        if let Some(value) = self.values.get(name) {
            return Ok(value.clone());
        }
        let (kind, physical) = self.resource(name, path)?;
        Ok(names::reference(&kind, &physical))
    }

    fn get_att(&self, argument: &Node) -> Result<String> {
        let [id, attribute] = &argument.items()?[..] else {
            return Err(argument.error(Problem::Expected("a logical id and an attribute")));
        };
        self.attribute(id.str()?, &self.text(attribute)?, &argument.path)
    }

    fn attribute(&self, id: &str, attribute: &str, path: &str) -> Result<String> {
        let (kind, physical) = self.resource(id, path)?;
        names::attribute(&kind, &physical, attribute)
            .ok_or_else(|| TemplateError::new(path, Problem::UnknownReference(format!("{id}.{attribute}"))))
    }

    /// Returns the type and the physical name of a resource whose condition holds.
    pub(super) fn resource(&self, id: &str, path: &str) -> Result<(String, String)> {
        let unknown = || TemplateError::new(path, Problem::UnknownReference(id.to_owned()));
        let node = Node::new(self.resources.get(id).ok_or_else(unknown)?, join("Resources", id));
        if let Some(condition) = node.get("Condition")
            && !self.holds(condition.str()?, &condition.path)?
        {
            return Err(unknown());
        }
        let kind = node.need("Type")?.str()?;
        let property = names::name_property(kind).ok_or_else(|| node.error(Problem::UnknownType(kind.to_owned())))?;
        let name = match node.get("Properties").and_then(|properties| properties.get(property)) {
            Some(name) => self.guarded(&name.path, || self.text(&name))?,
            None => names::default_name(kind, id),
        };
        Ok((kind.to_owned(), name))
    }

    /// Resolves `Fn::Sub`, with or without a mapping of its own variables.
    fn sub(&self, argument: &Node) -> Result<String> {
        let (template, own) = match argument.value {
            Value::Array(_) => match &argument.items()?[..] {
                [template, own] => (template.str()?, own.entries()?),
                _ => return Err(argument.error(Problem::Expected("a text and its variables"))),
            },
            _ => (argument.str()?, Vec::new()),
        };
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("${") {
            let closed = after.split_once('}');
            let (name, after) = closed.ok_or_else(|| argument.error(Problem::Expected("a } for every ${")))?;
            text.push_str(before);
            if let Some(literal) = name.strip_prefix('!') {
                text.push_str(&format!("${{{literal}}}"));
            } else if let Some((_, value)) = own.iter().find(|(key, _)| *key == name) {
                text.push_str(&self.text(value)?);
            } else if let Some((id, attribute)) = name.split_once('.') {
                text.push_str(&self.attribute(id, attribute, &argument.path)?);
            } else {
                text.push_str(&self.reference(name, &argument.path)?);
            }
            rest = after;
        }
        text.push_str(rest);
        Ok(text)
    }

    fn join(&self, argument: &Node) -> Result<String> {
        let [separator, list] = &argument.items()?[..] else {
            return Err(argument.error(Problem::Expected("a separator and a list")));
        };
        let list_value = self.resolve(list)?.unwrap_or_default();
        let parts = Node::new(&list_value, list.path.clone()).items()?;
        let parts = parts.iter().map(Node::text).collect::<Result<Vec<_>>>()?;
        Ok(parts.join(separator.str()?))
    }

    fn split(&self, argument: &Node) -> Result<Value> {
        let [separator, text] = &argument.items()?[..] else {
            return Err(argument.error(Problem::Expected("a separator and a text")));
        };
        Ok(self.text(text)?.split(separator.str()?).collect())
    }

    fn select(&self, argument: &Node) -> Result<Value> {
        let [index, list] = &argument.items()?[..] else {
            return Err(argument.error(Problem::Expected("an index and a list")));
        };
        let list_value = self.resolve(list)?.unwrap_or_default();
        let index_value = Value::String(self.text(index)?);
        let position = Node::new(&index_value, index.path.clone()).count()?;
        let found = usize::try_from(position).ok().and_then(|position| list_value.get(position));
        found.cloned().ok_or_else(|| argument.error(Problem::Expected("an index within the list")))
    }

    fn choose(&self, argument: &Node) -> Result<Option<Value>> {
        let [condition, yes, no] = &argument.items()?[..] else {
            return Err(argument.error(Problem::Expected("a condition and two values")));
        };
        let holds = self.holds(condition.str()?, &argument.path)?;
        self.resolve(if holds { yes } else { no })
    }

    fn truth(&self, node: &Node) -> Result<bool> {
        let Some((name, argument)) = intrinsic(node) else {
            return Err(node.error(Problem::Expected("a condition function")));
        };
        let each = || -> Result<Vec<bool>> { argument.items()?.iter().map(|item| self.truth(item)).collect() };
        match name {
            "Condition" => self.holds(argument.str()?, &argument.path),
            "Fn::And" => Ok(each()?.into_iter().all(|truth| truth)),
            "Fn::Or" => Ok(each()?.into_iter().any(|truth| truth)),
            "Fn::Not" => match each()?[..] {
                [truth] => Ok(!truth),
                _ => Err(argument.error(Problem::Expected("one condition"))),
            },
            "Fn::Equals" => match &argument.items()?[..] {
                [left, right] => Ok(self.text(left)? == self.text(right)?),
                _ => Err(argument.error(Problem::Expected("two values"))),
            },
            other => Err(argument.error(Problem::UnknownIntrinsic(other.to_owned()))),
        }
    }

    fn guarded<T>(&self, key: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.in_progress.borrow().iter().any(|started| started == key) {
            return Err(TemplateError::new(key, Problem::Circular));
        }
        self.in_progress.borrow_mut().push(key.to_owned());
        let result = work();
        self.in_progress.borrow_mut().pop();
        result
    }
}

/// Returns the name and the argument if this is an intrinsic. The path remains that of the place
/// where it is used.
fn intrinsic<'a>(node: &Node<'a>) -> Option<(&'a str, Node<'a>)> {
    let object = node.value.as_object().filter(|object| object.len() == 1)?;
    let (name, argument) = object.iter().next()?;
    // A mapping with only `Condition` is an intrinsic only inside `Conditions`, where its argument
    // is a name.
    let is_one = name == "Ref" || name.starts_with("Fn::") || (name == "Condition" && argument.is_string());
    is_one.then(|| (name.as_str(), Node::new(argument, node.path.clone())))
}

fn text_value(text: String) -> Option<Value> {
    Some(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::yaml;
    use serde_json::json;

    const TEMPLATE: &str = "
Conditions:
  Yes: !Equals [!Ref Stage, dev]
  No: !Not [!Condition 'Yes']
  Both: !And [!Condition 'Yes', !Condition 'No']
  Either: !Or [!Condition 'Yes', !Condition 'No']
  Round: !Not [!Condition Round]
Resources:
  T: {Type: 'AWS::DynamoDB::Table', Properties: {TableName: !Sub 'x-${Stage}-t'}}
  Q: {Type: 'AWS::SQS::Queue', Properties: {QueueName: !Join ['-', [x, !Ref Stage, q]]}}
  Gone: {Type: 'AWS::SQS::Queue', Condition: 'No'}
  Loop: {Type: 'AWS::SQS::Queue', Properties: {QueueName: !Sub '${Loop}-again'}}
";

    fn resolve(text: &str) -> Result<Option<Value>> {
        let (document, _) = yaml::parse(TEMPLATE)?;
        let (value, _) = yaml::parse(text)?;
        let parameters = BTreeMap::from([("Stage".to_owned(), "dev".to_owned())]);
        let resources = document["Resources"].as_object().unwrap();
        Resolver::new(parameters, document.get("Conditions"), resources).resolve(&Node::new(&value, "Here"))
    }

    fn value(text: &str) -> Value {
        resolve(text).unwrap().unwrap()
    }

    fn refusal(text: &str) -> String {
        resolve(text).unwrap_err().to_string()
    }

    #[test]
    fn ref_returns_parameters_pseudo_parameters_and_resources() {
        assert_eq!(value("!Ref Stage"), "dev");
        assert_eq!(value("!Ref AWS::Region"), "us-east-1");
        assert_eq!(value("Ref: AWS::AccountId"), "000000000000");
        assert_eq!(value("!Ref T"), "x-dev-t");
        assert_eq!(value("!Ref Q"), "http://sqs.local/000000000000/x-dev-q");
    }

    #[test]
    fn get_att_returns_attributes() {
        let arn = "arn:aws:dynamodb:us-east-1:000000000000:table/x-dev-t";
        assert_eq!(value("!GetAtt T.Arn"), arn);
        assert_eq!(value("Fn::GetAtt: [T, Arn]"), arn);
    }

    #[test]
    fn sub_replaces_names_attributes_and_its_own_variables() {
        assert_eq!(value("!Sub '${Stage}/${T}/${Q.QueueName}'"), "dev/x-dev-t/x-dev-q");
        assert_eq!(value("Fn::Sub: 'arn:${AWS::Partition}:x'"), "arn:aws:x");
        assert_eq!(value("!Sub ['${Own}-${Stage}', {Own: !Ref T}]"), "x-dev-t-dev");
        assert_eq!(value("!Sub 'a ${!Literal} $context.b'"), "a ${Literal} $context.b");
    }

    #[test]
    fn join_split_and_select_work_on_lists() {
        assert_eq!(value("!Join ['-', [a, !Ref Stage, 1]]"), "a-dev-1");
        assert_eq!(value("!Split [',', 'a,b']"), json!(["a", "b"]));
        assert_eq!(value("!Select [1, !Split [',', 'a,b']]"), "b");
        assert_eq!(refusal("!Select [2, [a, b]]"), "template.yaml: Here: expected an index within the list");
    }

    #[test]
    fn if_follows_its_condition() {
        for (condition, expected) in [("Yes", "a"), ("No", "b"), ("Both", "b"), ("Either", "a")] {
            assert_eq!(value(&format!("!If ['{condition}', a, b]")), expected, "{condition}");
        }
    }

    #[test]
    fn no_value_removes_its_key_or_list_item() {
        assert_eq!(
            value("{a: !Ref AWS::NoValue, b: !If ['No', x, !Ref AWS::NoValue], c: [1, !Ref AWS::NoValue]}"),
            json!({"c": [1]})
        );
    }

    #[test]
    fn a_dangling_reference_is_refused_with_its_path() {
        let nothing = |name| format!("template.yaml: Here.a: {name} refers to nothing that the local stack knows");
        assert_eq!(refusal("a: !Ref Nobody"), nothing("Nobody"));
        assert_eq!(refusal("a: !Sub '${Nobody.Arn}'"), nothing("Nobody"));
        assert_eq!(refusal("a: !GetAtt T.Colour"), nothing("T.Colour"));
        assert_eq!(refusal("a: !Ref Gone"), nothing("Gone"));
        assert_eq!(refusal("a: !If [Unheard, x, y]"), nothing("Unheard"));
    }

    #[test]
    fn an_unknown_function_is_refused_by_name() {
        assert_eq!(
            refusal("a: !ImportValue x"),
            "template.yaml: Here.a: the local stack does not know the function Fn::ImportValue"
        );
    }

    #[test]
    fn a_circular_reference_is_refused() {
        assert_eq!(refusal("!Ref Loop"), "template.yaml: Resources.Loop.Properties.QueueName: refers to itself");
        assert_eq!(refusal("!If [Round, a, b]"), "template.yaml: Conditions.Round: refers to itself");
    }

    #[test]
    fn arguments_of_the_wrong_shape_are_refused() {
        for text in ["!Sub 'a ${b'", "!Sub [a]", "!Join [a]", "!If ['Yes']", "!Select []", "!Split a", "!GetAtt [T]"] {
            let error = resolve(text).unwrap_err();
            assert!(matches!(error.problem, Problem::Expected(_)), "{text}: {error}");
        }
    }
}
