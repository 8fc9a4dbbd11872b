# The commands that people use most. `just` lists them.

default:
    @just --list

# Start the local stack (arguments go to it: just run --port 3100)
run *arguments:
    cargo run -- {{arguments}}

# Format, lint and run the quick tests: under a minute, once everything is built and linted
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test -p umavez-domain -p umavez-platform -p umavez-tests --lib --test house

# Run every test, or those whose name contains a text: just test explain
test name="":
    cargo test --workspace {{name}}

# Compare the emulator of DynamoDB with DynamoDB Local in the tests whose name contains a text
independent *filter:
    infra/independent-check {{filter}}

# Write the generated pages of docs/reference
docs:
    UMAVEZ_UPDATE_DOCS=1 cargo test -p umavez-tests --test house docs

# Everything that must hold before a change goes in
ci:
    .ci/run
