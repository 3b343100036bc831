//! What a message's attributes may be, and when they come back.

use aws_sdk_sqs::primitives::Blob;
use aws_sdk_sqs::types::{
    MessageAttributeValue, MessageSystemAttributeName, MessageSystemAttributeNameForSends, MessageSystemAttributeValue,
};

use crate::support::{code, system, text, world};

#[tokio::test]
async fn attributes_are_at_most_ten_well_named_and_filled() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let send = || world.sqs.send_message().queue_url(&queue).message_body("x");
    let ten = (0..10).fold(send(), |send, number| send.message_attributes(format!("a{number}"), text("v")));
    ten.clone().send().await.unwrap();
    assert_eq!(code(ten.message_attributes("a10", text("v")).send().await), "InvalidParameterValue");

    for name in ["aws.x", "AMAZON.x", ".x", "x.", "a..b", "a b", "é", &"x".repeat(257)] {
        assert_eq!(code(send().message_attributes(name, text("v")).send().await), "InvalidParameterValue", "{name}");
    }
    let bad_type = MessageAttributeValue::builder().data_type("Text").string_value("v").build().unwrap();
    let no_bytes = MessageAttributeValue::builder().data_type("Binary").binary_value(Blob::new("")).build().unwrap();
    for value in [text(""), bad_type, no_bytes] {
        assert_eq!(code(send().message_attributes("a", value).send().await), "InvalidParameterValue");
    }
    assert_eq!(code(send().message_attributes("a", text("\u{1}")).send().await), "InvalidMessageContents");
}

#[tokio::test]
async fn attributes_come_back_only_when_asked_for() {
    let world = world().await;
    let queue = world.queue("q", &[]).await;
    let trace = MessageSystemAttributeValue::builder().data_type("String").string_value("Root=1-2-3").build().unwrap();
    let send = world.sqs.send_message().queue_url(&queue).message_body("x").message_attributes("app.code", text("c"));
    let send =
        send.message_attributes("other", text("o")).message_system_attributes(MessageSystemAttributeNameForSends::AwsTraceHeader, trace);
    send.send().await.unwrap();

    let receive = || world.sqs.receive_message().queue_url(&queue).visibility_timeout(0);
    let plain = receive().send().await.unwrap().messages.unwrap().remove(0);
    assert_eq!((plain.attributes(), plain.message_attributes()), (None, None));

    let asked =
        receive().message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount).message_attribute_names("app.*");
    let asked = asked.send().await.unwrap().messages.unwrap().remove(0);
    assert_eq!(asked.attributes().unwrap().len(), 1);
    assert_eq!(system(&asked, MessageSystemAttributeName::ApproximateReceiveCount), Some("2"));
    assert_eq!(asked.message_attributes().unwrap().keys().collect::<Vec<_>>(), ["app.code"]);

    let all = receive().message_system_attribute_names(MessageSystemAttributeName::All).message_attribute_names("All");
    let all = all.send().await.unwrap().messages.unwrap().remove(0);
    assert_eq!(system(&all, MessageSystemAttributeName::AwsTraceHeader), Some("Root=1-2-3"));
    assert!(system(&all, MessageSystemAttributeName::SentTimestamp).is_some());
    assert_eq!(all.message_attributes().unwrap().len(), 2);
}
