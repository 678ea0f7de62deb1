from dart_agent.models.model_directory import model_digest


def test_the_digest_of_a_model(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(3 << 20))
    before = model_digest(tmp_path)
    (tmp_path / "view.html").write_text("no part of it")
    assert model_digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(bytes((3 << 20) - 1) + b"x")
    assert model_digest(tmp_path) != before
