
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
	PRIMARY KEY (run_id, version)
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
	PRIMARY KEY (lease_id)
);

CREATE INDEX idx_lease_state ON lease (run_id, state);

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
	reason VARCHAR(16) DEFAULT '' NOT NULL,
	lease_id VARCHAR(32),
	created_at DOUBLE NOT NULL,
	PRIMARY KEY (id),
	CONSTRAINT uk_rollout_group UNIQUE (run_id, group_key)
);

CREATE INDEX idx_rollout_group_lease ON rollout_group (lease_id);

CREATE INDEX idx_rollout_group_state ON rollout_group (run_id, state, id);

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
	reason VARCHAR(16) DEFAULT '' NOT NULL,
	source VARCHAR(16) NOT NULL,
	terminal VARCHAR(16) NOT NULL,
	reward DOUBLE,
	num_steps INTEGER NOT NULL,
	num_actions INTEGER NOT NULL,
	oldest_version INTEGER NOT NULL,
	newest_version INTEGER NOT NULL,
	trained_version INTEGER,
	lease_id VARCHAR(32),
	env_seconds DOUBLE NOT NULL,
	timings JSON NOT NULL,
	created_at DOUBLE NOT NULL,
	PRIMARY KEY (rollout_id)
);

CREATE INDEX idx_rollout_meta_group ON rollout_meta (group_id);

CREATE INDEX idx_rollout_meta_state ON rollout_meta (run_id, state, reason);

CREATE INDEX idx_rollout_meta_task ON rollout_meta (run_id, task_id, rollout_id);

CREATE INDEX idx_rollout_meta_time ON rollout_meta (run_id, created_at);

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

CREATE TABLE run_state (
	run_id VARCHAR(191) NOT NULL,
	name VARCHAR(191) NOT NULL,
	value JSON NOT NULL,
	PRIMARY KEY (run_id, name)
);

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
