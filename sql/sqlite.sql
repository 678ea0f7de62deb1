-- Generated from dart_train/data/store/schema.py (revision 0.2.0): do not edit.

CREATE TABLE checkpoint (
	id INTEGER NOT NULL,
	name VARCHAR(50) DEFAULT '' NOT NULL,
	version VARCHAR(50) NOT NULL,
	run_id VARCHAR(191) DEFAULT '' NOT NULL,
	status VARCHAR(20) DEFAULT 'PENDING' NOT NULL,
	path VARCHAR(255) NOT NULL,
	source VARCHAR(50),
	operator VARCHAR(50),
	remark VARCHAR(1024),
	config_yaml TEXT,
	created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
	updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
	deleted_at TIMESTAMP,
	started_at TIMESTAMP,
	finished_at TIMESTAMP,
	PRIMARY KEY (id)
);

CREATE INDEX idx_created_at ON checkpoint (created_at);

CREATE INDEX idx_status ON checkpoint (status);

CREATE INDEX idx_updated_at ON checkpoint (updated_at);

CREATE TABLE checkpoint_meta (
	run_id VARCHAR(191) NOT NULL,
	version INTEGER NOT NULL,
	checkpoint_id INTEGER NOT NULL,
	created_at DOUBLE NOT NULL,
	completed_at DOUBLE,
	retired_at DOUBLE,
	PRIMARY KEY (run_id, version)
);

CREATE TABLE curation_decision (
	id INTEGER NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	rule VARCHAR(64) NOT NULL,
	verdict VARCHAR(32) NOT NULL,
	task_id VARCHAR(191) DEFAULT '' NOT NULL,
	group_id INTEGER,
	details JSON NOT NULL,
	decided_at DOUBLE NOT NULL,
	PRIMARY KEY (id)
);

CREATE INDEX idx_curation_decision_rule ON curation_decision (run_id, rule, id);

CREATE TABLE experience_pool (
	rollout_id INTEGER NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	trajectory_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	provenance VARCHAR(16) NOT NULL,
	origin VARCHAR(512) DEFAULT '' NOT NULL,
	has_logprobs BOOLEAN NOT NULL,
	reward DOUBLE NOT NULL,
	uses INTEGER DEFAULT '0' NOT NULL,
	added_at DOUBLE NOT NULL,
	last_used_at DOUBLE,
	retired_at DOUBLE,
	PRIMARY KEY (rollout_id)
);

CREATE INDEX idx_experience_pool_task ON experience_pool (run_id, task_id, retired_at);

CREATE TABLE group_injection (
	group_id INTEGER NOT NULL,
	rollout_id INTEGER NOT NULL,
	replaced_id INTEGER,
	injected_at DOUBLE NOT NULL,
	PRIMARY KEY (group_id, rollout_id)
);

CREATE TABLE lease (
	lease_id VARCHAR(32) NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	holder VARCHAR(191) NOT NULL,
	state VARCHAR(16) NOT NULL,
	num_groups INTEGER NOT NULL,
	ttl_s DOUBLE NOT NULL,
	created_at DOUBLE NOT NULL,
	expires_at DOUBLE NOT NULL,
	version INTEGER,
	serial INTEGER DEFAULT '0' NOT NULL,
	result_version INTEGER,
	surplus INTEGER DEFAULT '0' NOT NULL,
	PRIMARY KEY (lease_id)
);

CREATE INDEX idx_lease_holder ON lease (run_id, holder, serial);

CREATE INDEX idx_lease_state ON lease (run_id, state);

CREATE TABLE lease_item (
	lease_id VARCHAR(32) NOT NULL,
	group_id INTEGER NOT NULL,
	PRIMARY KEY (lease_id, group_id)
);

CREATE TABLE rollout_group (
	id INTEGER NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	group_key VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	expected INTEGER NOT NULL,
	members INTEGER NOT NULL,
	reward_min DOUBLE NOT NULL,
	reward_max DOUBLE NOT NULL,
	oldest_version INTEGER NOT NULL,
	state VARCHAR(16) NOT NULL,
	reason VARCHAR(64) DEFAULT '' NOT NULL,
	lease_id VARCHAR(32),
	created_at DOUBLE NOT NULL,
	taught INTEGER DEFAULT '0' NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uk_rollout_group UNIQUE (run_id, group_key)
);

CREATE INDEX idx_rollout_group_age ON rollout_group (run_id, state, oldest_version, members);

CREATE INDEX idx_rollout_group_lease ON rollout_group (lease_id);

CREATE INDEX idx_rollout_group_state ON rollout_group (run_id, state, id);

CREATE INDEX idx_rollout_group_task ON rollout_group (run_id, task_id, state);

CREATE TABLE rollout_meta (
	rollout_id INTEGER NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	trajectory_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	group_id INTEGER,
	group_key VARCHAR(191) NOT NULL,
	expected INTEGER NOT NULL,
	task_hash VARCHAR(191) NOT NULL,
	seed BIGINT NOT NULL,
	state VARCHAR(16) NOT NULL,
	reason VARCHAR(64) DEFAULT '' NOT NULL,
	source VARCHAR(16) NOT NULL,
	terminal VARCHAR(16) NOT NULL,
	reward DOUBLE,
	num_steps INTEGER NOT NULL,
	num_actions INTEGER NOT NULL,
	oldest_version INTEGER NOT NULL,
	newest_version INTEGER NOT NULL,
	staleness_version INTEGER NOT NULL,
	trained_version INTEGER,
	lease_id VARCHAR(32),
	env_seconds DOUBLE NOT NULL,
	timings JSON NOT NULL,
	created_at DOUBLE NOT NULL,
	digest VARCHAR(32) DEFAULT '' NOT NULL,
	recorded_at DOUBLE,
	clock_skew_s DOUBLE,
	taught INTEGER DEFAULT '0' NOT NULL,
	training_reward DOUBLE,
	PRIMARY KEY (rollout_id)
);

CREATE INDEX idx_rollout_meta_group ON rollout_meta (group_id);

CREATE INDEX idx_rollout_meta_state ON rollout_meta (run_id, state, reason);

CREATE INDEX idx_rollout_meta_task ON rollout_meta (run_id, task_id, rollout_id);

CREATE INDEX idx_rollout_meta_time ON rollout_meta (run_id, created_at);

CREATE UNIQUE INDEX uk_rollout_meta_trajectory ON rollout_meta (run_id, trajectory_id);

CREATE TABLE rollout_run (
	id INTEGER NOT NULL,
	run_id VARCHAR(191),
	trajectory_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	trace_id VARCHAR(191) NOT NULL,
	split_dir VARCHAR(512),
	reward DOUBLE,
	num_chunks INTEGER,
	used INTEGER DEFAULT '0' NOT NULL,
	model_version VARCHAR(512),
	instruction VARCHAR(1024),
	create_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uq_rollout_run_id UNIQUE (id),
	CONSTRAINT uk_rollout_run_traj_run UNIQUE (trajectory_id, run_id)
);

CREATE INDEX idx_rollout_run_task ON rollout_run (task_id);

CREATE TABLE rollout_step (
	rollout_id INTEGER NOT NULL,
	step INTEGER NOT NULL,
	oldest_version INTEGER NOT NULL,
	newest_version INTEGER NOT NULL,
	num_tokens INTEGER NOT NULL,
	num_actions INTEGER NOT NULL,
	failed BOOLEAN NOT NULL,
	seconds DOUBLE NOT NULL,
	engine VARCHAR(64) NOT NULL,
	PRIMARY KEY (rollout_id, step)
);

CREATE TABLE run_state (
	run_id VARCHAR(191) NOT NULL,
	name VARCHAR(191) NOT NULL,
	value JSON NOT NULL,
	PRIMARY KEY (run_id, name)
);

CREATE TABLE serving (
	id INTEGER NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	replica VARCHAR(191) NOT NULL,
	version INTEGER NOT NULL,
	started_at DOUBLE NOT NULL,
	ended_at DOUBLE,
	PRIMARY KEY (id)
);

CREATE INDEX idx_serving_run ON serving (run_id, ended_at);

CREATE TABLE task_state (
	run_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	rollouts INTEGER NOT NULL,
	window_size INTEGER NOT NULL,
	success_rate DOUBLE,
	mean_steps DOUBLE,
	longest_success INTEGER,
	last_rollout_id INTEGER NOT NULL,
	updated_at DOUBLE NOT NULL,
	PRIMARY KEY (run_id, task_id)
);

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	PRIMARY KEY (version_num)
);

INSERT INTO alembic_version (version_num) VALUES ('0.2.0');
