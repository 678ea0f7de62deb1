# pip and uv read different settings. A mirror, or a certificate authority, that one of them is told of is told to the other.

pip_setting() {  # pip_setting VENV NAME : as the environment or pip's configuration files say
  "$1/bin/python" -m pip config list 2>/dev/null | sed -nE "s/^(global|install|:env:)\.$2='(.*)'$/\2/p" | tail -1
}

share_indexes() {  # share_indexes VENV
  local index certificates uv=${UV_DEFAULT_INDEX:-${UV_INDEX_URL:-}}
  [ -z "${INDEXES_SHARED:-}" ] || return 0
  INDEXES_SHARED=1
  index=$(pip_setting "$1" index-url)
  certificates=$(pip_setting "$1" cert)
  if [ -n "$index" ] && [ -z "$uv" ]; then export UV_DEFAULT_INDEX=$index; fi
  if [ -n "$uv" ] && [ -z "$index" ]; then export PIP_INDEX_URL=$uv; fi
  if [ -n "$certificates" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$certificates; fi
  INDEX=${index:-$uv}
}

index_in_use() {  # without a password that its address may hold
  if [ -n "${INDEX:-}" ]; then printf '%s\n' "$INDEX, which is configured here, may lack it" | sed -E 's|://[^/@]*@|://|'
  else echo "PIP_INDEX_URL names one"; fi
}
