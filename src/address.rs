//! Addresses of services. There may be a password in one, so no error quotes it.

use url::Url;

/// Reads a URL of one of these schemes.
pub(crate) fn parse(text: &str, schemes: &[&str]) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|problem| format!("not a URL ({problem})"))?;
    if !schemes.contains(&url.scheme()) {
        return Err(format!("not a {}:// URL", schemes.join(":// or ")));
    }
    // Where a password holds one of these as it is, what follows is taken for the path, the query or the fragment.
    if url.fragment().is_some() || url.path().contains('@') || url.query().is_some_and(|query| query.contains('@')) {
        return Err("there is a # in it, or an @ after the host".to_owned());
    }
    Ok(url)
}

/// How to write what has a meaning in URLs.
pub(crate) const ENCODE: &str = "in user and password write / as %2F, ? as %3F, # as %23, @ as %40 and % as %25";

/// Takes a parameter out of the query; the others stay as they are.
pub(crate) fn take(url: &mut Url, name: &str) -> Option<String> {
    let query = url.query()?.to_owned();
    let (taken, rest): (Vec<&str>, Vec<&str>) = query.split('&').partition(|pair| pair.split('=').next() == Some(name));
    url.set_query((!rest.is_empty()).then(|| rest.join("&")).as_deref());
    // A plus is a plus here, as in libpq.
    let pair = taken.last()?.replace('+', "%2B");
    url::form_urlencoded::parse(pair.as_bytes()).next().map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_special_character_that_is_not_encoded_is_noticed_wherever_it_stands() {
        for odd in ['/', '?', '#'] {
            for password in [format!("12{odd}x"), format!("{odd}x"), format!("a@b{odd}c=d"), format!("x{odd}"), format!("1{odd}2@3")] {
                let problem = parse(&format!("redis://u:{password}@h:1/0?a=b"), &["redis"]);
                assert!(problem.is_err(), "{password}: {problem:?}");
            }
        }
        for password in ["a@b", "a:b", "a b", "a%40b", "[a]", "a\\b", "é"] {
            assert_eq!(parse(&format!("redis://u:{password}@h"), &["redis"]).expect(password).host_str(), Some("h"));
        }
    }

    #[test]
    fn a_parameter_is_taken_and_the_others_stay_as_they_are() {
        let mut url = parse("postgres://h/d?options=-c%20a%3Db&sslrootcert=/a+b%20c&x=1", &["postgres"]).expect("usable");
        assert_eq!(take(&mut url, "sslrootcert").as_deref(), Some("/a+b c"));
        assert_eq!(take(&mut url, "sslmode"), None);
        assert_eq!(url.query(), Some("options=-c%20a%3Db&x=1"));
        assert_eq!((take(&mut url, "options"), take(&mut url, "x")), (Some("-c a=b".to_owned()), Some("1".to_owned())));
        assert_eq!(url.as_str(), "postgres://h/d");
    }
}
