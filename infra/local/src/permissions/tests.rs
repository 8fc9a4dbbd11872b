//! Tests of roles in templates, and of the calls that they allow.

use std::collections::BTreeMap;

use super::*;

/// Returns the permissions of one function with this role.
fn role(statements: &str) -> Result<Permissions, StackError> {
    let template = format!(
        "
Resources:
  Rows:
    Type: AWS::DynamoDB::Table
    Properties:
      TableName: rows
      BillingMode: PAY_PER_REQUEST
      AttributeDefinitions: [{{AttributeName: pk, AttributeType: S}}]
      KeySchema: [{{AttributeName: pk, KeyType: HASH}}]
      StreamSpecification: {{StreamViewType: NEW_IMAGE}}
  Q: {{Type: AWS::SQS::Queue, Properties: {{QueueName: q}}}}
  Files: {{Type: AWS::S3::Bucket, Properties: {{BucketName: files}}}}
  Secret: {{Type: AWS::SecretsManager::Secret, Properties: {{Name: s}}}}
  R:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument: {{}}
      Policies: [{{PolicyDocument: {{Statement: [{statements}]}}}}]
  F:
    Type: AWS::Serverless::Function
    Properties:
      CodeUri: functions/f
      FunctionName: name
      Role: !GetAtt R.Arn
      Events: {{Q: {{Type: SQS, Properties: {{Queue: !GetAtt Q.Arn}}}}}}"
    );
    let model = crate::template::load(&template, &BTreeMap::new())?;
    Permissions::of(&model, |function| format!("key-{}", function.binary))
}

/// Returns a role with these statements, followed by the grants that the function's mapping needs.
fn with_mapping(statements: &str) -> Permissions {
    let mapping = "{Effect: Allow, Action: [sqs:ReceiveMessage, sqs:DeleteMessage, sqs:GetQueueAttributes], \
                   Resource: !GetAtt Q.Arn}";
    role(&format!("{statements}{mapping}")).unwrap()
}

fn needed(action: &str, on: &str) -> Needed {
    Needed { action: action.to_owned(), on: on.to_owned() }
}

fn may(permissions: &Permissions, action: &str, on: &str) -> bool {
    permissions.check("f", &[needed(action, on)], &[]).is_ok()
}

#[test]
fn only_granted_actions_are_allowed() {
    let permissions = with_mapping(
        "{Effect: Allow, Action: [dynamodb:GetItem, dynamodb:PutItem], Resource: !GetAtt Rows.Arn}, \
         {Effect: Allow, Action: secretsmanager:GetSecretValue, Resource: !Ref Secret},",
    );
    for (action, on, allowed) in [
        ("dynamodb:GetItem", "rows", true),
        ("dynamodb:PutItem", "rows", true),
        ("dynamodb:DeleteItem", "rows", false),
        ("dynamodb:GetItem", "rows2", false),
        ("dynamodb:GetItem", "rows/index/by-time", false),
        ("secretsmanager:GetSecretValue", "s", true),
        ("secretsmanager:GetSecretValue", "s2", false),
        ("sqs:SendMessage", "q", false),
    ] {
        assert_eq!(may(&permissions, action, on), allowed, "{action} {on}");
    }
    let both = [needed("dynamodb:PutItem", "rows"), needed("dynamodb:ConditionCheckItem", "rows")];
    let refusal = permissions.check("f", &both, &[]).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "User: arn:aws:sts::000000000000:assumed-role/f/name is not authorized to perform: dynamodb:ConditionCheckItem on \
         resource: arn:aws:dynamodb:us-east-1:000000000000:table/rows because no identity-based policy allows the \
         dynamodb:ConditionCheckItem action"
    );
    assert_eq!(permissions.refusals().len(), 6);
}

#[test]
fn a_caller_that_is_not_a_function_may_do_everything() {
    let permissions = with_mapping("");
    assert_eq!(permissions.caller("key-f".to_owned()), "f");
    assert_eq!(permissions.caller("test".to_owned()), "test");
    assert_eq!(permissions.check("test", &[needed("dynamodb:DeleteItem", "rows")], &[]), Ok(()));
    assert_eq!(permissions.refusals(), []);
}

#[test]
fn an_explicit_deny_overrides_every_grant() {
    let permissions = with_mapping(
        "{Effect: Allow, Action: [dynamodb:GetItem, dynamodb:Query], Resource: [!GetAtt Rows.Arn, !Sub '${Rows.Arn}/index/*']}, \
         {Effect: Deny, Action: 'dynamodb:*', Resource: !Sub '${Rows.Arn}/index/secret'},",
    );
    assert!(may(&permissions, "dynamodb:Query", "rows/index/open"));
    let refusal = permissions.check("f", &[needed("dynamodb:Query", "rows/index/secret")], &[]).unwrap_err();
    assert!(refusal.to_string().ends_with("/rows/index/secret with an explicit deny in an identity-based policy"));
}

#[test]
fn a_resource_may_be_a_pattern() {
    let permissions = with_mapping(
        "{Effect: Allow, Action: dynamodb:Query, Resource: !Sub '${Rows.Arn}/index/*'}, \
         {Effect: Allow, Action: s3:PutObject, Resource: !Sub '${Files.Arn}/in/*.csv'},",
    );
    for (action, on, allowed) in [
        ("dynamodb:Query", "rows/index/by-time", true),
        ("dynamodb:Query", "rows", false),
        ("dynamodb:Query", "rows2/index/by-time", false),
        ("s3:PutObject", "files/in/a/b.csv", true),
        ("s3:PutObject", "files/in/b.txt", false),
        ("s3:PutObject", "files/out/b.csv", false),
    ] {
        assert_eq!(may(&permissions, action, on), allowed, "{action} {on}");
    }
    for (pattern, text, like) in [
        ("*", "", true),
        ("a?c", "abc", true),
        ("a?c", "ac", false),
        ("a*c*", "abcd", true),
        ("a*c", "abcd", false),
        ("*é?", "café!", true),
    ] {
        assert_eq!(is_like(pattern, text), like, "{pattern} {text}");
    }
}

#[test]
fn a_condition_tests_the_request() {
    let permissions = with_mapping(
        "{Effect: Allow, Action: s3:ListBucket, Resource: !GetAtt Files.Arn, Condition: {StringLike: {'s3:prefix': [in/*]}}}, \
         {Effect: Allow, Action: ses:SendEmail, Resource: 'arn:aws:ses:us-east-1:000000000000:identity/*', \
          Condition: {StringEquals: {'ses:FromAddress': [a@example.com, b@example.com]}}},",
    );
    let list = |context: &Context| permissions.check("f", &[needed("s3:ListBucket", "files")], context).is_ok();
    assert!(list(&[("s3:prefix", "in/a".to_owned())]));
    assert!(!list(&[("s3:prefix", "out/a".to_owned())]));
    assert!(!list(&[]), "a missing key matches no pattern");
    let send = |from: &str| {
        let needed = [needed("ses:SendEmail", &format!("identity/{from}"))];
        permissions.check("f", &needed, &[("ses:FromAddress", from.to_owned())]).is_ok()
    };
    assert!(send("b@example.com") && !send("c@example.com"));
}

#[test]
fn an_email_needs_the_identity_of_its_address_or_of_a_parent_domain() {
    for (identity, allowed) in [
        ("a@mail.example.com", true),
        ("mail.example.com", true),
        ("example.com", true),
        ("b@mail.example.com", false),
        ("ample.com", false),
    ] {
        let arn = format!("arn:aws:ses:us-east-1:000000000000:identity/{identity}");
        let permissions = with_mapping(&format!("{{Effect: Allow, Action: ses:SendEmail, Resource: '{arn}'}},"));
        assert_eq!(may(&permissions, "ses:SendEmail", "identity/a@mail.example.com"), allowed, "{identity}");
        assert!(!may(&permissions, "ses:SendEmail", "configuration-set/set"));
    }
}

#[test]
fn a_grant_is_used_when_a_call_needs_it() {
    let permissions = with_mapping(
        "{Effect: Allow, Action: [dynamodb:GetItem, dynamodb:PutItem], Resource: !GetAtt Rows.Arn}, \
         {Effect: Allow, Action: [logs:PutLogEvents], Resource: 'arn:aws:logs:us-east-1:000000000000:log-group:/aws/lambda/name:*'},",
    );
    assert!(may(&permissions, "dynamodb:GetItem", "rows"));
    let used: Vec<_> = permissions.grants().into_iter().map(|grant| (grant.action, grant.used)).collect();
    let expected = [
        ("dynamodb:GetItem", true),
        ("dynamodb:PutItem", false),
        // Lambda itself uses these: it writes the logs and reads the queue.
        ("logs:PutLogEvents", true),
        ("sqs:DeleteMessage", true),
        ("sqs:GetQueueAttributes", true),
        ("sqs:ReceiveMessage", true),
    ];
    assert_eq!(used, expected.map(|(action, used)| (action.to_owned(), used)));
}

#[test]
fn a_role_that_cannot_be_evaluated_or_lacks_a_grant_is_refused() {
    let on_rows = |more: &str| format!("{{Effect: Allow, Resource: !GetAtt Rows.Arn, {more}}}");
    for (statements, why) in [
        (on_rows("Action: 'dynamodb:*'"), "the local stack does not know grants of many actions: dynamodb:*"),
        (on_rows("NotAction: a:B"), "the local stack does not know NotAction in a statement"),
        (
            on_rows("Action: a:B, Condition: {Bool: {'aws:SecureTransport': 'true'}}"),
            "the local stack does not know the condition Bool",
        ),
        (
            on_rows("Action: a:B, Condition: {StringEquals: {'aws:SourceIp': x}}"),
            "the local stack does not know aws:SourceIp of a condition",
        ),
        (on_rows("Action: a:B"), "a mapping needs sqs:ReceiveMessage on q, which the role does not grant"),
    ] {
        assert_eq!(role(&statements).unwrap_err().to_string(), format!("the role of F: {why}"));
    }
}
