//! Errors as AWS words them: the modeled type in the body, the query code in the `x-amzn-query-error` header.
//!
//! The AWS SDKs read the code from that header, so a wrong one would arrive as an untyped error.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use rustack_sqs_model::error::{SqsError, SqsErrorCode};
use rustack_sqs_model::types::BatchResultErrorEntry;
use serde_json::json;

/// The media type of every answer.
pub(crate) const JSON: &str = "application/x-amz-json-1.0";

/// The namespace of the query codes that AWS gave one.
const NAMESPACE: &str = "AWS.SimpleQueueService.";

/// An answer that refuses a call, or one entry of a batch.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) status: u16,
    /// The query code, such as `AWS.SimpleQueueService.NonExistentQueue` or `InvalidParameterValue`.
    pub(crate) code: String,
    /// Whether the caller is to blame; AWS asks to retry only where it is not.
    pub(crate) sender_fault: bool,
    /// For people.
    pub(crate) message: String,
}

impl ApiError {
    /// A refusal with a code that has no namespace.
    pub(crate) fn plain(code: &str, message: impl Into<String>) -> Self {
        let sender_fault = !matches!(code, "InternalError" | "InternalFailure" | "ServiceUnavailable");
        Self { status: if sender_fault { 400 } else { 500 }, code: code.to_owned(), sender_fault, message: message.into() }
    }

    /// A refusal with a code in AWS's namespace.
    pub(crate) fn spaced(code: &str, message: impl Into<String>) -> Self {
        Self::plain(&format!("{NAMESPACE}{code}"), message)
    }

    /// A parameter outside what AWS accepts.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::plain("InvalidParameterValue", message)
    }

    /// A required parameter that is not there.
    pub(crate) fn missing(parameter: &str) -> Self {
        Self::plain("MissingParameter", format!("The request must contain the parameter {parameter}."))
    }

    /// No such queue.
    pub(crate) fn no_queue() -> Self {
        Self::spaced("NonExistentQueue", "The specified queue does not exist.")
    }

    /// A handle which this queue never gave out.
    pub(crate) fn bad_handle(handle: &str) -> Self {
        Self::plain("ReceiptHandleIsInvalid", format!("The input receipt handle \"{handle}\" is not a valid receipt handle."))
    }

    /// The message of this handle is not in flight.
    pub(crate) fn not_in_flight() -> Self {
        Self::spaced("MessageNotInflight", "The message referred to is not in flight.")
    }

    /// This error as the failed entry `id` of a batch.
    pub(crate) fn entry(self, id: String) -> BatchResultErrorEntry {
        BatchResultErrorEntry { id, sender_fault: self.sender_fault, code: self.code, message: Some(self.message) }
    }

    /// This error as an HTTP answer.
    pub(crate) fn into_response(self) -> Response<Full<Bytes>> {
        let short = self.code.strip_prefix(NAMESPACE).unwrap_or(&self.code);
        let modeled = if short == "NonExistentQueue" { "QueueDoesNotExist" } else { short };
        let body = json!({ "__type": format!("com.amazonaws.sqs#{modeled}"), "message": self.message });
        let fault = if self.sender_fault { "Sender" } else { "Receiver" };
        let mut response = answer(body.to_string());
        if let Ok(status) = hyper::StatusCode::from_u16(self.status) {
            *response.status_mut() = status;
        }
        if let Ok(header) = format!("{};{fault}", self.code).parse() {
            response.headers_mut().insert("x-amzn-query-error", header);
        }
        response
    }
}

impl From<SqsError> for ApiError {
    fn from(error: SqsError) -> Self {
        match error.code {
            SqsErrorCode::MessageNotInflight => Self::not_in_flight(),
            SqsErrorCode::NonExistentQueue => Self::no_queue(),
            code => Self::plain(code.error_type(), error.message),
        }
    }
}

/// A 200 answer with this JSON text.
pub(crate) fn answer(json: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(json.into()));
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static(JSON));
    response
}
