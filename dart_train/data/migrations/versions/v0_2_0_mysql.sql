-- The schema of version 0.2.0.

CREATE TABLE checkpoint (
	id BIGINT NOT NULL COMMENT 'Primary Key ID' AUTO_INCREMENT,
	name VARCHAR(50) NOT NULL COMMENT 'Checkpoint Name' DEFAULT '',
	version VARCHAR(50) NOT NULL COMMENT 'v0, v1, ...',
	run_id VARCHAR(191) NOT NULL DEFAULT '',
	status VARCHAR(20) NOT NULL COMMENT 'Status: PENDING|RUNNING|COMPLETED|FAILED|DEPRECATED' DEFAULT 'PENDING',
	path VARCHAR(255) NOT NULL COMMENT 'Storage Path',
	source VARCHAR(50) COMMENT 'Source',
	operator VARCHAR(50) COMMENT 'Operator',
	remark VARCHAR(1024) COMMENT 'Remark',
	config_yaml TEXT COMMENT 'Full Deployment Config',
	created_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
	updated_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
	deleted_at TIMESTAMP NULL COMMENT 'Soft Delete Time',
	started_at TIMESTAMP NULL COMMENT 'Started At',
	finished_at TIMESTAMP NULL COMMENT 'Finished At',
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_unicode_ci;

CREATE INDEX idx_created_at ON checkpoint (created_at);

CREATE INDEX idx_status ON checkpoint (status);

CREATE INDEX idx_updated_at ON checkpoint (updated_at);

CREATE TABLE checkpoint_meta (
	run_id VARCHAR(191) NOT NULL,
	version INTEGER NOT NULL,
	checkpoint_id BIGINT NOT NULL COMMENT 'checkpoint.id',
	created_at DOUBLE NOT NULL COMMENT 'Unix time',
	completed_at DOUBLE COMMENT 'Unix time',
	retired_at DOUBLE COMMENT 'Unix time at which its files were given up',
	PRIMARY KEY (run_id, version)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE curation_decision (
	id BIGINT NOT NULL AUTO_INCREMENT,
	run_id VARCHAR(191) NOT NULL,
	rule VARCHAR(64) NOT NULL COMMENT 'experience_pool, no_signal, or another name',
	verdict VARCHAR(32) NOT NULL,
	task_id VARCHAR(191) NOT NULL DEFAULT '',
	group_id BIGINT,
	details JSON NOT NULL,
	decided_at DOUBLE NOT NULL,
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX idx_curation_decision_rule ON curation_decision (run_id, rule, id);

CREATE TABLE experience_pool (
	rollout_id BIGINT NOT NULL COMMENT 'rollout_run.id',
	run_id VARCHAR(191) NOT NULL,
	trajectory_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	provenance VARCHAR(16) NOT NULL,
	origin VARCHAR(512) NOT NULL COMMENT 'file, person or run it came from' DEFAULT '',
	has_logprobs BOOL NOT NULL COMMENT 'false: importance weight 1, and flagged',
	reward DOUBLE NOT NULL,
	uses INTEGER NOT NULL COMMENT 'groups it was injected into' DEFAULT '0',
	added_at DOUBLE NOT NULL,
	last_used_at DOUBLE,
	retired_at DOUBLE COMMENT 'NULL while it may be used',
	PRIMARY KEY (rollout_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX idx_experience_pool_task ON experience_pool (run_id, task_id, retired_at);

CREATE TABLE group_injection (
	group_id BIGINT NOT NULL COMMENT 'rollout_group.id',
	rollout_id BIGINT NOT NULL COMMENT 'of the pool, joins the group',
	replaced_id BIGINT COMMENT 'rollout_meta.rollout_id of the member that left',
	injected_at DOUBLE NOT NULL,
	PRIMARY KEY (group_id, rollout_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE lease (
	lease_id VARCHAR(32) NOT NULL,
	run_id VARCHAR(191) NOT NULL,
	holder VARCHAR(191) NOT NULL,
	state VARCHAR(16) NOT NULL,
	num_groups INTEGER NOT NULL,
	ttl_s DOUBLE NOT NULL,
	created_at DOUBLE NOT NULL,
	expires_at DOUBLE NOT NULL,
	version INTEGER COMMENT 'weights that were trained on it, by its commit',
	serial INTEGER NOT NULL COMMENT 'counts its holder''s leases' DEFAULT '0',
	result_version INTEGER COMMENT 'first published version that holds what was learned from it',
	surplus INTEGER NOT NULL COMMENT 'groups trained although lost' DEFAULT '0',
	PRIMARY KEY (lease_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX idx_lease_holder ON lease (run_id, holder, serial);

CREATE INDEX idx_lease_state ON lease (run_id, state);

CREATE TABLE lease_item (
	lease_id VARCHAR(32) NOT NULL,
	group_id BIGINT NOT NULL COMMENT 'rollout_group.id',
	PRIMARY KEY (lease_id, group_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE rollout_group (
	id BIGINT NOT NULL AUTO_INCREMENT,
	run_id VARCHAR(191) NOT NULL,
	group_key VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	expected INTEGER NOT NULL COMMENT 'trainable members that complete it',
	members INTEGER NOT NULL COMMENT 'trainable members recorded so far',
	reward_min DOUBLE NOT NULL,
	reward_max DOUBLE NOT NULL,
	oldest_version INTEGER NOT NULL COMMENT 'least staleness_version of its members',
	state VARCHAR(16) NOT NULL,
	reason VARCHAR(64) NOT NULL DEFAULT '',
	lease_id VARCHAR(32),
	created_at DOUBLE NOT NULL COMMENT 'Unix time',
	taught INTEGER NOT NULL COMMENT 'members that a teacher taught' DEFAULT '0',
	PRIMARY KEY (id),
	CONSTRAINT uk_rollout_group UNIQUE (run_id, group_key)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX idx_rollout_group_age ON rollout_group (run_id, state, oldest_version, members);

CREATE INDEX idx_rollout_group_lease ON rollout_group (lease_id);

CREATE INDEX idx_rollout_group_state ON rollout_group (run_id, state, id);

CREATE INDEX idx_rollout_group_task ON rollout_group (run_id, task_id, state);

CREATE TABLE rollout_meta (
	rollout_id BIGINT NOT NULL COMMENT 'rollout_run.id',
	run_id VARCHAR(191) NOT NULL,
	trajectory_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	group_id BIGINT COMMENT 'rollout_group.id; NULL for what is in no group',
	group_key VARCHAR(191) NOT NULL,
	expected INTEGER NOT NULL,
	task_hash VARCHAR(191) NOT NULL,
	seed BIGINT NOT NULL,
	state VARCHAR(16) NOT NULL,
	reason VARCHAR(64) NOT NULL DEFAULT '',
	source VARCHAR(16) NOT NULL,
	terminal VARCHAR(16) NOT NULL,
	reward DOUBLE,
	num_steps INTEGER NOT NULL,
	num_actions INTEGER NOT NULL,
	oldest_version INTEGER NOT NULL,
	newest_version INTEGER NOT NULL,
	staleness_version INTEGER NOT NULL COMMENT 'of the step that its staleness counts from',
	trained_version INTEGER COMMENT 'weights that were trained with it',
	lease_id VARCHAR(32),
	env_seconds DOUBLE NOT NULL COMMENT 'desktop time from request to reply: reset + step + evaluate + wire',
	timings JSON NOT NULL,
	created_at DOUBLE NOT NULL COMMENT 'Unix time of the episode''s end',
	digest VARCHAR(32) NOT NULL COMMENT 'of its stored form' DEFAULT '',
	recorded_at DOUBLE COMMENT 'Unix time by the database''s clock',
	clock_skew_s DOUBLE COMMENT 'how far its machine''s clock was ahead; NULL: not noticeably',
	taught INTEGER NOT NULL COMMENT 'steps that a teacher taught' DEFAULT '0',
	training_reward DOUBLE COMMENT 'where judges take part; NULL: the reward',
	PRIMARY KEY (rollout_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX idx_rollout_meta_group ON rollout_meta (group_id);

CREATE INDEX idx_rollout_meta_state ON rollout_meta (run_id, state, reason);

CREATE INDEX idx_rollout_meta_task ON rollout_meta (run_id, task_id, rollout_id);

CREATE INDEX idx_rollout_meta_time ON rollout_meta (run_id, created_at);

CREATE UNIQUE INDEX uk_rollout_meta_trajectory ON rollout_meta (run_id, trajectory_id);

CREATE TABLE rollout_run (
	id BIGINT NOT NULL AUTO_INCREMENT,
	run_id VARCHAR(191),
	trajectory_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	trace_id VARCHAR(191) NOT NULL,
	split_dir VARCHAR(512),
	reward DOUBLE,
	num_chunks INTEGER,
	used INTEGER NOT NULL DEFAULT '0',
	model_version VARCHAR(512),
	instruction VARCHAR(1024),
	create_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
	PRIMARY KEY (id),
	CONSTRAINT uq_rollout_run_id UNIQUE (id),
	CONSTRAINT uk_rollout_run_traj_run UNIQUE (trajectory_id, run_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_unicode_ci;

CREATE INDEX idx_rollout_run_task ON rollout_run (task_id);

CREATE TABLE rollout_step (
	rollout_id BIGINT NOT NULL COMMENT 'rollout_run.id',
	step INTEGER NOT NULL COMMENT '0 for the first',
	oldest_version INTEGER NOT NULL,
	newest_version INTEGER NOT NULL,
	num_tokens INTEGER NOT NULL COMMENT 'sampled',
	num_actions INTEGER NOT NULL,
	failed BOOL NOT NULL COMMENT 'its action could not be carried out',
	seconds DOUBLE NOT NULL COMMENT 'all its phases together',
	engine VARCHAR(64) NOT NULL COMMENT 'replica that served it',
	PRIMARY KEY (rollout_id, step)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE run_state (
	run_id VARCHAR(191) NOT NULL,
	name VARCHAR(191) NOT NULL,
	value JSON NOT NULL,
	PRIMARY KEY (run_id, name)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE serving (
	id BIGINT NOT NULL AUTO_INCREMENT,
	run_id VARCHAR(191) NOT NULL,
	replica VARCHAR(191) NOT NULL,
	version INTEGER NOT NULL,
	started_at DOUBLE NOT NULL,
	ended_at DOUBLE COMMENT 'NULL while it serves',
	PRIMARY KEY (id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX idx_serving_run ON serving (run_id, ended_at);

CREATE TABLE task_state (
	run_id VARCHAR(191) NOT NULL,
	task_id VARCHAR(191) NOT NULL,
	rollouts INTEGER NOT NULL COMMENT 'scored rollouts ever',
	window_size INTEGER NOT NULL COMMENT 'rollouts behind success_rate and mean_steps',
	success_rate DOUBLE COMMENT 'mean reward over the window',
	mean_steps DOUBLE,
	longest_success INTEGER COMMENT 'steps of the longest successful rollout ever',
	last_rollout_id BIGINT NOT NULL COMMENT 'newest row that is counted in',
	updated_at DOUBLE NOT NULL,
	PRIMARY KEY (run_id, task_id)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	PRIMARY KEY (version_num)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

INSERT INTO alembic_version (version_num) VALUES ('0.2.0');
