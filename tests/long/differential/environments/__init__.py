"""The environments, one module per subject. They use only the public API of verifiers 0.1.14."""
