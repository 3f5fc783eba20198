/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CHECKs of matchmaking, groups and gossip buffers fire: each case breaks an assumption of a
 * function, which must end by a CHECK of the named file. (tests/mutants.py triggers many of them
 * as well; those of group_object.c and group_create.c need an MPI.)
 */
#include "check.h"
#include "gossip/gossip_models.c" /* Their CHECKs are in static functions. */
#include "group/group_agent.c"
#include "group/group_wire.c"
#include "protocol/group/matchmaking.c"
#include "protocol/group/grid.h"

enum { RANKS = 3 };

/* Only the parts that the functions use: this is rank 0 of three. */

static struct match match;
static struct group group;
static struct window window = {.rank = 0, .size = RANKS};
static struct membership_entry entries[RANKS];
static struct gossip_memory memory;

static bool match_breaks(void)
{
    struct match_goal goal = {
        .round = 5, .key = 1, .max_members = RANKS, .window = 1000};
    if (!check_breaks("matchmaking.c"))
        return false;
    EXPECT_OK(match_init(&match, 0, RANKS, 100));
    match_begin(&match, 0, &goal);
    return true;
}

static bool group_breaks(enum group_phase phase, const char *file)
{
    if (!check_breaks(file))
        return false;
    group.phase = phase;
    group.window = &window;
    group.grid = (struct grid){.axes = 1, .side = {RANKS}};
    group.membership = (struct membership){entries, RANKS};
    EXPECT_OK(match_init(&group.match, 0, RANKS, 100));
    return true;
}

static bool memory_breaks(const char *file)
{
    memory.window = &window;
    memory.layout = (struct gossip_layout){
        .ranks = RANKS, .count = 10, .chunk = LATTICE_BLOCK, .queue_slots = 1};
    return check_breaks(file);
}

static const struct grid small = {.axes = 2, .side = {2, 2}};

static struct group_data round_of_two = {.group = {.members = 2}, .max_members = 2};

static void break_grids(void)
{
    if (check_breaks("grid.c"))
        grid_coordinate(&small, 0, 2);
    if (check_breaks("grid.c"))
        grid_line(&small, 4, 0);
    if (check_breaks("grid.c"))
        grid_move(&small, 0, 0, 2);
    if (check_breaks("grid.c"))
        grid_chunk(&small, 4, 0, 0, 2, 2);
    if (check_breaks("grid.c"))
        grid_axis(&(struct grid){.axes = 0}, 0);
    if (check_breaks("grid.c"))
        grid_cells(&(struct grid){.axes = 0});
    if (check_breaks("grid.c")) {
        double share = 0;
        uint64_t bound[2];
        grid_bounds(&share, 1, 10, 1, bound);
    }
    if (group_breaks(PHASE_IDLE, "group_wire.c"))
        membership_set(&group.membership, RANKS, MEMBER_AWAY, 0);
}

static void break_matchmaking(void)
{
    if (match_breaks())
        match_send(&match, MATCH_LEAVE, 0, 5, &(struct match_note){.attempt = 1});
    if (check_breaks("matchmaking.c"))
        match_part_holds(&(struct match_message){.kind = MATCH_ASK});
    if (check_breaks("matchmaking.c"))
        match_put_member(&(struct match_message){.kind = MATCH_LIST}, 2,
                         &(struct match_member){0});
    if (match_breaks()) {
        struct match_message out;
        match.out.head = 1;
        match_next(&match, &out);
    }
    if (match_breaks())
        match_refuse(&match, RANKS, 1);
    if (match_breaks()) {
        match.state = MATCH_FORMED;
        match_withdraw(&match);
    }
    if (match_breaks())
        match_dismiss(&match, 0);
    if (match_breaks()) {
        match.peers[1].follower = FOLLOWER_IN;
        match_drop_lost_follower(&match, 1);
    }
    if (match_breaks()) {
        match.unconfirmed = 1;
        match_expect(&match, 1, 2);
    }
    if (match_breaks()) {
        match.state = MATCH_FOLLOWING;
        match.follow_by = INT64_MAX;
        match_tick(&match, 1);
    }
    if (match_breaks()) {
        match.state = MATCH_FOLLOWING;
        match.leader = match.asking = 1;
        match_expect(&match, 1, 2);
    }
}

static void break_groups(void)
{
    if (group_breaks(PHASE_ROUND, "group_wire.c"))
        group_wire_send(&group, 0, WIRE_NUDGE, 0, 0, (union group_values){.word = {0}});
    if (group_breaks(PHASE_ROUND, "group_wire.c"))
        group_wire_send_notice(&group, 1, (struct group_name){1, 0}, NOTICE_PASS, 0);
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_agent_on_message(&group.base, 0, &(struct control){.kind = WIRE_NUDGE});
    if (group_breaks(PHASE_ROUND, "group_wire.c")) {
        enum decision decision;
        group_window_vote(&group, (struct group_name){1, 1}, VOTE_OPEN, 2, &decision);
    }
    if (group_breaks(PHASE_MATCHING, "group_wire.c"))
        group_window_serve(&group, &(struct group_message){.kind = WIRE_NUDGE});
    if (group_breaks(PHASE_ROUND, "group_wire.c"))
        group_wire_suspect(&group, 0);
    if (group_breaks(PHASE_ROUND, "group_wire.c"))
        group_wire_membership_changed(&group, 0);
    if (group_breaks(PHASE_MATCHING, "group_agent.c")) {
        group.inquiry.waits = true;
        group_matching_alarm(&group);
    }
    if (group_breaks(PHASE_MATCHING, "group_agent.c")) {
        group.membership.entries[0].status = MEMBER_AWAY;
        group_matching_begin(&group);
    }
    if (group_breaks(PHASE_MATCHING, "group_agent.c")) {
        group.match.out.lost = 1;
        group_matching_flush(&group);
    }
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_agent_leave(&group);
    if (group_breaks(PHASE_ASKING, "group_agent.c")) {
        group.round = 3;
        group_agent_round_to_join(&group);
    }
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_round_set_bandwidth(&group, -1);
    if (group_breaks(PHASE_IDLE, "group_agent.c")) {
        enum group_phase next;
        group_round_continue(&group, &next);
    }
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_round_notify(&group, 1, 0);
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_round_vote(&group, VOTE_DONE);
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_round_on_vote(
            &group, &(struct group_message){
                        .source = 1,
                        .values = {.name = {1, 1}, .vote = VOTE_DONE, .members = 2}});
    if (group_breaks(PHASE_IDLE, "group_agent.c"))
        group_round_heartbeat(&group);
    if (group_breaks(PHASE_ROUND, "group_agent.c"))
        group_round_finish(&group);
    if (group_breaks(PHASE_ROUND, "group_agent.c")) {
        group.now.decision = DECISION_COMMIT;
        group_round_finish(&group);
    }
    if (check_breaks("group_agent.c")) {
        group.queued = true;
        group_agent_drive(&group.base);
    }
    if (check_breaks("group_agent.c")) {
        group.queued = true;
        group_agent_begin_close(&group.base);
    }
    if (check_breaks("group_object.c")) {
        group.driven = true;
        group_object_dispose(&group);
    }
    if (group_breaks(PHASE_IDLE, "group_object.c")) {
        window.size = RANKS - 1;
        group_object_attach(&group);
    }
    if (group_breaks(PHASE_ROUND, "group_wire.c")) {
        enum decision decision;
        group_window_vote(&group, (struct group_name){RANKS, 1}, VOTE_DONE, 2,
                          &decision);
    }
}

static void break_group_data(void)
{
    if (check_breaks("group_data.c"))
        group_data_input(&round_of_two, 2, true);
    if (check_breaks("group_data.c"))
        group_data_part(&round_of_two, 2);
    if (check_breaks("group_data.c"))
        group_data_waits_for(&round_of_two, 2, true);
    if (check_breaks("group_data.c"))
        group_data_run(&round_of_two);
    if (check_breaks("group_data.c"))
        group_data_start(&round_of_two, true);
    if (check_breaks("group_data.c"))
        group_data_end(&round_of_two);
    if (check_breaks("group_data.c")) {
        bool ended;
        round_of_two.under_way = 1;
        group_data_poll(&round_of_two, &ended);
    }
    if (check_breaks("group_data.c")) {
        round_of_two.group.position = 2;
        group_data_prepare(&round_of_two);
    }
    if (check_breaks("group_data.c"))
        group_data_bytes(&round_of_two);
    if (check_breaks("group_data.c")) {
        static const struct dtype none;
        round_of_two.dtype = &none;
        group_data_init(&round_of_two);
    }
    if (check_breaks("group_data.c")) {
        round_of_two.under_way = 1;
        group_data_destroy(&round_of_two);
    }
}

static void break_gossip(void)
{
    if (memory_breaks("accumulator.c")) {
        int64_t uncollected;
        int32_t reserved;
        accumulator_reserve(&memory, 0, 1, &uncollected, &reserved);
    }
    if (memory_breaks("accumulator.c"))
        accumulator_add(&memory, 1, 1, memory.change);
    if (memory_breaks("accumulator.c"))
        accumulator_query(&memory, 0, 1);
    if (memory_breaks("gossip_models.c")) {
        uint64_t version = 0;
        bool whole;
        register_read_chunk(&memory, 1, 0, NULL, &version, &whole);
    }
    if (memory_breaks("gossip_models.c")) {
        int32_t pushed;
        queue_push(&memory, RANKS, NULL, NULL, NULL, &pushed);
    }
    if (memory_breaks("gossip_models.c")) {
        struct gossip_fetched fetched;
        slot_fetch_chunk(&memory, RANKS, 0, 0, NULL, NULL, &fetched);
    }
}

int main(void)
{
    break_grids();
    break_matchmaking();
    break_groups();
    break_group_data();
    break_gossip();
    printf("checks of groups and gossip: all have fired\n");
    return 0;
}
